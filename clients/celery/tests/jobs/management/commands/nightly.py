import time

from django.core.management.base import BaseCommand
from rlock_django import exclusive


class Command(BaseCommand):
    def add_arguments(self, parser):
        parser.add_argument("seconds", type=float)

    @exclusive("lock:nightly", returncode=75, lease=2)
    def handle(self, *, seconds, **options):
        self.stdout.write(f"held under fence {self.lock.fence}")
        self.stdout.flush()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.lock.check()
            time.sleep(0.01)
