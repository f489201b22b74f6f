//! The engine as WebAssembly, which gets the same events and must say the same.

use std::path::{Path, PathBuf};
use std::process::Command;

use wasmi::{Engine, Linker, Memory, Module, Store, TypedFunc};

/// It, compiled.
pub(crate) struct Wasm(Module);

/// A machine of it.
pub(crate) struct Twin {
    store: Store<()>,
    memory: Memory,
    input: TypedFunc<u32, u32>,
    handle: TypedFunc<u64, u32>,
    output: TypedFunc<(), u32>,
    remaining: TypedFunc<(u64, u64), u64>,
}

/// The file that `RLOCK_ENGINE_WASM` names, or one that is built now; the error
/// if there is none.
pub(crate) fn built() -> Result<PathBuf, String> {
    if let Some(file) = std::env::var_os("RLOCK_ENGINE_WASM") {
        return Ok(file.into());
    }
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("rlock_engine.wasm");
    let mut build = Command::new(top.join("clients/build-engine"));
    let build = build.arg(&file);
    let output = build.output().map_err(|it| it.to_string())?;
    match output.status.success() {
        true => Ok(file),
        false => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
    }
}
impl Wasm {
    pub(crate) fn read(file: &Path) -> Result<Self, String> {
        let bytes = std::fs::read(file).map_err(|it| format!("{}: {it}", file.display()))?;
        let module = Module::new(&Engine::default(), &bytes);
        module.map(Self).map_err(|it| it.to_string())
    }

    pub(crate) fn open(&self, configuration: &[u8]) -> Result<Twin, wasmi::Error> {
        let engine = self.0.engine();
        let mut store = Store::new(engine, ());
        // It imports nothing.
        let linker = Linker::new(engine);
        let it = linker.instantiate_and_start(&mut store, &self.0)?;
        let open = it.get_typed_func::<(), u32>(&store, "rlock_open")?;
        let mut twin = Twin {
            memory: it.get_memory(&store, "memory").expect("a memory"),
            input: it.get_typed_func(&store, "rlock_input")?,
            handle: it.get_typed_func(&store, "rlock_handle")?,
            output: it.get_typed_func(&store, "rlock_output")?,
            remaining: it.get_typed_func(&store, "rlock_remaining")?,
            store,
        };
        twin.put(configuration)?;
        assert_eq!(open.call(&mut twin.store, ())?, 0, "it is not opened");
        Ok(twin)
    }
}

impl Twin {
    fn put(&mut self, bytes: &[u8]) -> Result<(), wasmi::Error> {
        let length = u32::try_from(bytes.len()).expect("short");
        let to = self.input.call(&mut self.store, length)?;
        let written = self.memory.write(&mut self.store, to as usize, bytes);
        written.expect("it has room");
        Ok(())
    }

    /// `None` if the event is refused.
    pub(crate) fn handle(&mut self, now: u64, event: &[u8]) -> Option<Vec<u8>> {
        self.handled(now, event).expect("no trap")
    }

    pub(crate) fn remaining(&mut self, guard: u64, now: u64) -> u64 {
        let left = self.remaining.call(&mut self.store, (guard, now));
        left.expect("no trap")
    }

    fn handled(&mut self, now: u64, event: &[u8]) -> Result<Option<Vec<u8>>, wasmi::Error> {
        self.put(event)?;
        let length = self.handle.call(&mut self.store, now)?;
        if length == u32::MAX {
            return Ok(None);
        }
        let from = self.output.call(&mut self.store, ())? as usize;
        let data = self.memory.data(&self.store);
        Ok(Some(data[from..from + length as usize].to_vec()))
    }
}
