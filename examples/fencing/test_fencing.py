"""What the example promises, on a real PostgreSQL and a real store, with the lock server of RLOCK_URL."""

import http.client
import os
import pathlib
import re
import shlex
import sys

import psycopg
import pytest
import redis
import urllib3

import fencing
import servers

HERE = pathlib.Path(__file__).parent
PAGE = HERE / "../../docs/fencing.md"
HOLDERS = {"rust": shlex.quote(os.environ["FENCING_HOLDER"]), "python": f"{sys.executable} {HERE}/holder.py"}


@pytest.fixture(scope="session")
def postgres():
    with servers.postgres() as address:
        yield address


@pytest.fixture
def store():
    with servers.store() as store:
        yield store


@pytest.fixture(params=HOLDERS)
def holder(request):
    return shlex.split(HOLDERS[request.param])


def tell(holder, postgres, checks=True, late_write="after"):
    """Tells a story, three times at most: a machine that stalls for a second takes the lock from a holder too early."""
    for left in reversed(range(3)):
        with servers.store(checks) as store:
            try:
                return fencing.tell(holder, fencing.Accounts(postgres, store.url), late_write)
            except fencing.Disturbed:
                if not left:
                    raise


def ask(store, method, name, body="", **headers):
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    return urllib3.request(method, f"{store.url}/{name}", body=body, headers=headers)


# The story


def test_late_write_is_refused_where_fences_are_checked_and_loses_a_deposit_elsewhere(holder, postgres):
    told = tell(holder, postgres)
    assert told.fences[0] < told.fences[1]
    assert told.ended == "lost"
    assert told.late == {
        "table": "accepted",
        "object": "accepted",
        "fenced-table": "refused",
        "fenced-object": "refused",
        "s3-object": "refused",
    }
    assert told.balances == {"table": 110, "object": 110, "fenced-table": 150, "fenced-object": 150, "s3-object": 150}
    assert told.is_as_it_must_be()


def test_late_write_is_refused_before_the_new_holder_has_written(holder, postgres):
    told = tell(holder, postgres, late_write="before")
    fenced = {"fenced-table", "fenced-object", "s3-object"}
    assert {name for name, outcome in told.late.items() if outcome == "refused"} == fenced
    assert {told.balances[name] for name in fenced} == {150}


def test_a_store_that_does_not_check_is_noticed(postgres):
    told = tell(shlex.split(HOLDERS["rust"]), postgres, checks=False)
    assert told.late["fenced-object"] == "accepted"
    assert told.balances["fenced-object"] == 110
    assert not told.is_as_it_must_be()


# The store


def test_an_object_refuses_a_smaller_fence_and_takes_the_same_again(store):
    assert ask(store, "PUT", "x", "a", x_fence="7").status == 200
    assert ask(store, "PUT", "x", "b", x_fence="7").status == 200
    late = ask(store, "PUT", "x", "c", x_fence="6")
    assert (late.status, late.data) == (412, b"x-fence 6 is smaller than 7, which this object has seen\n")
    assert ask(store, "GET", "x").data == b"b"


def test_an_announced_fence_counts_though_nothing_was_written(store):
    ask(store, "PUT", "x", "a", x_fence="7")
    announced = ask(store, "POST", "x", x_fence="8")
    assert (announced.status, announced.data) == (200, b"a")
    assert ask(store, "PUT", "x", "b", x_fence="7").status == 412
    assert ask(store, "POST", "x", x_fence="7").status == 412


def test_an_object_that_has_seen_a_fence_is_not_written_without_one(store):
    ask(store, "PUT", "x", "a", x_fence="7")
    assert ask(store, "PUT", "x", "b").status == 428
    assert ask(store, "GET", "x").data == b"a"


def test_each_object_has_a_fence_of_its_own(store):
    assert ask(store, "PUT", "x", "a", x_fence="9").status == 200
    assert ask(store, "PUT", "y", "b", x_fence="3").status == 200


@pytest.mark.parametrize("fence", ["0", "-1", "x", "", "9007199254740992", "²"])
def test_a_fence_that_is_none_is_named_with_its_limit(store, fence):
    answer = ask(store, "PUT", "x", "a", x_fence=fence.encode())
    assert answer.status == 400
    assert b"is not a number from 1 to 9007199254740991" in answer.data
    assert ask(store, "PUT", "x", "a", x_fence="9007199254740991").status == 200


def test_an_object_above_the_limit_is_refused_before_it_is_sent(store):
    connection = http.client.HTTPConnection("127.0.0.1", store.server_port, timeout=30)
    connection.putrequest("PUT", "/x")
    connection.putheader("Content-Length", str((1 << 20) + 1))
    connection.endheaders()
    answer = connection.getresponse()
    assert (answer.status, answer.read()) == (413, b"Content-Length 1048577 is not a number from 0 to 1048576\n")
    connection.close()
    assert ask(store, "PUT", "x", b"a" * (1 << 20), Connection="close").status == 200


def test_etags_are_compared_as_s3_does(store):
    first = ask(store, "PUT", "x", "a", If_None_Match="*")
    assert first.status == 200
    assert ask(store, "PUT", "x", "b", If_None_Match="*").status == 412
    assert ask(store, "PUT", "x", "b", If_Match=first.headers["ETag"]).status == 200
    assert ask(store, "PUT", "x", "c", If_Match=first.headers["ETag"]).status == 412
    assert ask(store, "PUT", "missing", "c", If_Match=first.headers["ETag"]).status == 412


def test_the_same_content_has_the_same_etag_so_the_fence_belongs_into_it(store):
    before = ask(store, "PUT", "x", "a")
    again = ask(store, "PUT", "x", "a")
    assert before.headers["ETag"] == again.headers["ETag"]


# The page


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)


def words(text):
    return " ".join(text.replace(";", " ").split())


@pytest.fixture
def page(postgres):
    """Runs a statement of the page, found by the words that it begins with."""
    statements = [words(each) for block in blocks("sql") for each in block.split(";") if each.strip()]
    with psycopg.connect(postgres, cursor_factory=psycopg.RawCursor, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS account; DROP TABLE IF EXISTS fences")

        def run(beginning, *values):
            [statement] = [each for each in statements if each.startswith(beginning)]
            cursor = connection.execute(statement, values)
            return cursor.fetchall() if cursor.description else None

        run.connection = connection
        yield run


def test_the_statements_of_the_page_refuse_a_smaller_fence(page):
    page("CREATE TABLE account")
    write = "INSERT INTO account"
    assert page(write, "a", 100, 7) == [(7,)]
    assert page(write, "a", 101, 7) == [(7,)], "a holder writes as often as it likes"
    assert page(write, "a", 102, 9) == [(9,)]
    assert page(write, "a", 103, 7) == [], "no row: refused"
    assert page("UPDATE account", "a", 10) == [(102,)]
    assert page("UPDATE account", "a", 9) == []
    assert page(write, "a", 104, 9) == [], "10 was announced"
    assert page(write, "b", 1, 7) == [(7,)], "another row knows nothing of it"


def test_one_row_of_the_page_fences_a_transaction_over_any_tables(page):
    page("CREATE TABLE fences")
    assert page("INSERT INTO fences", "account:7", 7) == [(7,)]
    assert page("INSERT INTO fences", "account:7", 9) == [(9,)]
    assert page("INSERT INTO fences", "account:7", 7) == []


def test_the_check_of_the_page_holds_up_a_larger_fence_until_the_transaction_ends(page, postgres):
    page("CREATE TABLE fences")
    page("INSERT INTO fences", "account:7", 7)
    with psycopg.connect(postgres) as other:
        other.execute("SET lock_timeout = '200ms'")
        with page.connection.transaction():
            page("INSERT INTO fences", "account:7", 7)
            with pytest.raises(psycopg.errors.LockNotAvailable):
                other.execute("UPDATE fences SET fence = 9")


@pytest.mark.parametrize("source", ["holder.py", "src/tables.rs"])
def test_the_example_uses_the_statements_of_the_page(source):
    code = words((HERE / source).read_text())
    for beginning in ("INSERT INTO account", "UPDATE account"):
        [statement] = [words(each) for block in blocks("sql") for each in block.split(";") if words(each).startswith(beginning)]
        assert statement in code


@pytest.fixture
def server():
    with redis.Redis.from_url(os.environ["RLOCK_URL"]) as server:
        server.flushdb()
        yield server


def test_the_script_of_the_page_keeps_the_largest_fence(server):
    write = server.register_script(blocks("lua")[0])
    keys = "value", "value:fence"
    assert write(keys, [7, "a"]) == 1
    assert write(keys, [7, "b"]) == 1
    assert write(keys, [1795232742133354, "c"]) == 1
    assert write(keys, [1795232742133353, "d"]) == 0
    assert write(keys, [1795232742133354, "e"]) == 1
    assert server.get("value") == b"e"


def test_the_script_of_the_page_sees_on_the_server_of_the_lock_who_holds_it(server):
    write = server.register_script(blocks("lua")[1])
    keys = "value", "lock:value"
    first = server.execute_command("RLOCK.ACQUIRE", "lock:value", "worker-1", 30000)
    assert write(keys, [first, "a"]) == 1
    server.execute_command("RLOCK.FORCE", "lock:value")
    assert write(keys, [first, "b"]) == 0, "it is free"
    second = server.execute_command("RLOCK.ACQUIRE", "lock:value", "worker-2", 30000)
    assert write(keys, [first, "c"]) == 0, "the next holder has not written yet"
    assert write(keys, [second, "d"]) == 1
    assert server.get("value") == b"d"
