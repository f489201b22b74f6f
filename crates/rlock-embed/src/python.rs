//! The machine as a module of Python, for its 3.9 and later. It starts no thread
//! and keeps nothing of the process, so a child of a fork can have machines too.

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::{Machine, VERSION};

/// One client's engine. Who calls it sees to it that nobody else does meanwhile.
#[pyclass(module = "rlock_client._engine")]
struct Engine {
    machine: Machine,
    /// Is written over by each call.
    output: Vec<u8>,
}

#[pymethods]
impl Engine {
    #[new]
    fn new(configuration: &[u8]) -> PyResult<Self> {
        let machine = Machine::new(configuration).map_err(PyValueError::new_err)?;
        let output = Vec::new();
        Ok(Self { machine, output })
    }

    fn handle<'py>(
        &mut self,
        py: Python<'py>,
        now: u64,
        event: &[u8],
    ) -> PyResult<Bound<'py, PyBytes>> {
        let buffer = std::mem::take(&mut self.output);
        let output = self.machine.handle(now, event, buffer);
        self.output = output.map_err(|malformed| PyRuntimeError::new_err(malformed.to_string()))?;
        Ok(PyBytes::new(py, &self.output))
    }

    fn remaining(&self, guard: u64, now: u64) -> u64 {
        self.machine.remaining(guard, now)
    }
}

#[pymodule]
fn _engine(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("VERSION", VERSION)?;
    module.add_class::<Engine>()
}
