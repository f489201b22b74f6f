//! The machine as a Python module, for Python 3.9 and later. It starts no thread
//! and keeps no state of the process, so a forked child can have machines too.

use pyo3::IntoPyObjectExt;
use pyo3::exceptions::{PyException, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString};

use crate::format::{Malformed, Reader};
use crate::{Machine, VERSION};

/// One client's engine. The caller must exclude concurrent calls.
#[pyclass(module = "rlock_client._engine")]
struct Engine {
    machine: Machine,
    /// Overwritten by each call.
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

/// The output as the deadline and a list of actions. Each action is a tuple of
/// its kind and its fields.
#[pyfunction]
fn read<'py>(py: Python<'py>, output: &[u8]) -> PyResult<(u64, Bound<'py, PyList>)> {
    let mut reader = Reader::new(output);
    let deadline = reader.u64().map_err(malformed)?;
    let actions = PyList::empty(py);
    while reader.end().is_err() {
        actions.append(action(py, &mut reader)?)?;
    }
    Ok((deadline, actions))
}

fn malformed(malformed: Malformed) -> PyErr {
    PyRuntimeError::new_err(malformed.to_string())
}

fn action<'py>(py: Python<'py>, reader: &mut Reader<'_>) -> PyResult<Bound<'py, PyAny>> {
    let kind = reader.u8().map_err(malformed)?;
    if kind == 10 {
        let level = reader.u8().map_err(malformed)?;
        return (kind, level, text(py, reader)?).into_bound_py_any(py);
    }
    let number = reader.u64().map_err(malformed)?;
    match kind {
        1 => {
            let how = reader.u8().map_err(malformed)?;
            let host = text(py, reader)?;
            (kind, number, how, host, reader.u16().map_err(malformed)?).into_bound_py_any(py)
        }
        2 => {
            let data = PyBytes::new(py, reader.bytes().map_err(malformed)?);
            (kind, number, data).into_bound_py_any(py)
        }
        3 | 5 | 6 => (kind, number).into_bound_py_any(py),
        4 => {
            let (guard, owner) = (reader.u64().map_err(malformed)?, text(py, reader)?);
            let fences = PyDict::new(py);
            for _ in 0..reader.u32().map_err(malformed)? {
                let key = PyBytes::new(py, reader.bytes().map_err(malformed)?);
                fences.set_item(key, reader.u64().map_err(malformed)?)?;
            }
            (kind, number, guard, owner, fences).into_bound_py_any(py)
        }
        7 => {
            let (code, why) = (text(py, reader)?, text(py, reader)?);
            (kind, number, code, why, reader.flag().map_err(malformed)?).into_bound_py_any(py)
        }
        8 => (kind, number, value(py, reader)?).into_bound_py_any(py),
        9 => (kind, number, reader.u8().map_err(malformed)?).into_bound_py_any(py),
        11 => {
            let leads = reader.flag().map_err(malformed)?;
            let fence = reader.u64().map_err(malformed)?;
            let value = PyBytes::new(py, reader.bytes().map_err(malformed)?);
            let (owner, left) = (text(py, reader)?, reader.millis().map_err(malformed)?);
            let left = left.map(|left| left.as_secs_f64());
            let missed = reader.flag().map_err(malformed)?;
            let leader = leads.then_some((fence, value, owner, left));
            (kind, number, leader, missed).into_bound_py_any(py)
        }
        _ => Err(PyRuntimeError::new_err(format!("unknown action {kind}"))),
    }
}

/// A server's answer. A server's error is an `Exception`.
fn value<'py>(py: Python<'py>, reader: &mut Reader<'_>) -> PyResult<Bound<'py, PyAny>> {
    let kind = reader.u8().map_err(malformed)?;
    match kind {
        0 => Ok(py.None().into_bound(py)),
        1 => reader
            .u64()
            .map_err(malformed)?
            .cast_signed()
            .into_bound_py_any(py),
        2 => Ok(text(py, reader)?.into_any()),
        3 => {
            let values = PyList::empty(py);
            for _ in 0..reader.u32().map_err(malformed)? {
                values.append(value(py, reader)?)?;
            }
            Ok(values.into_any())
        }
        4 => {
            let pairs = PyDict::new(py);
            for _ in 0..reader.u32().map_err(malformed)? {
                let key = value(py, reader)?;
                pairs.set_item(key, value(py, reader)?)?;
            }
            Ok(pairs.into_any())
        }
        _ => Ok(PyException::new_err(text(py, reader)?.unbind())
            .into_value(py)
            .into_bound(py)
            .into_any()),
    }
}

/// Bytes in a server's text that are not UTF-8, as in a key, are shown escaped.
fn text<'py>(py: Python<'py>, reader: &mut Reader<'_>) -> PyResult<Bound<'py, PyString>> {
    let bytes = reader.bytes().map_err(malformed)?;
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok(PyString::new(py, text)),
        Err(_) => {
            let escaped =
                PyBytes::new(py, bytes).call_method1("decode", ("utf-8", "backslashreplace"))?;
            Ok(escaped.cast_into()?)
        }
    }
}

#[pymodule]
fn _engine(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("VERSION", VERSION)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<Engine>()?;
    module.add_function(wrap_pyfunction!(read, module)?)
}
