//! Runs the scenarios on the core, where time is a number.

use std::{fs, path::Path};

use rlock_testkit::script;

use crate::stage::Stage;

#[test]
fn core_does_what_the_scenarios_say() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/scenarios");
    let mut files: Vec<_> = fs::read_dir(folder)
        .expect("the scenarios are beside the crates")
        .map(|entry| entry.expect("the folder can be read").path())
        .filter(|path| path.extension().is_some_and(|it| it == "txt"))
        .collect();
    files.sort();
    assert!(!files.is_empty(), "there are no scenarios");
    let differences: Vec<_> = files.iter().filter_map(|file| run(file).err()).collect();
    assert!(differences.is_empty(), "\n{}", differences.join("\n"));
}

fn run(file: &Path) -> Result<(), String> {
    let name = file.file_name().unwrap_or_default().display().to_string();
    let text = fs::read_to_string(file).map_err(|error| format!("{name}: {error}"))?;
    let steps = script::steps(&text).map_err(|error| format!("{name}:{error}"))?;
    let mut stage = Stage::new();
    for step in steps {
        let got = stage.play(&step);
        if got != step.expected && !differs_in_order_only(&got, &step.expected) {
            let (line, expected) = (step.line, step.expected.join("\n"));
            let got = got.join("\n");
            return Err(format!("{name}:{line}\nexpected\n{expected}\ngot\n{got}\n"));
        }
    }
    Ok(())
}

#[test]
fn client_that_is_blocked_sends_nothing() {
    let script = |last: &str| {
        let steps = [
            "a: ACQUIRE k a 1000\n  fence 1\n",
            "b: ACQUIRE k b 1000 WAIT 0\n  blocked\n",
            last,
        ];
        script::steps(&steps.join("\n")).map(|steps| steps.len())
    };
    let refused = Err("7: b is blocked, and can send nothing".to_owned());
    assert_eq!(script("b: INFO k\n"), refused);
    assert_eq!(script("a: INFO k\n"), Ok(3));
    for ended in ["b: CLOSE\n", "a: DEL k\n  1\n  b: fence 2\n"] {
        let then = format!("{ended}\nb: INFO k\n");
        assert_eq!(script(&then), Ok(4), "{ended}");
    }
}

fn differs_in_order_only(got: &[String], expected: &[String]) -> bool {
    let parts = |lines: &[String]| {
        let (reply, rest) = lines.split_at(lines.len().min(1));
        (reply.to_vec(), script::sorted_outcomes(rest))
    };
    parts(got) == parts(expected)
}
