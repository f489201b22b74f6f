//! The machine as a Python module, for Python 3.9 and later. It starts no thread
//! and keeps no state of the process, so a forked child can have machines too.

use std::time::Duration;

use pyo3::IntoPyObjectExt;
use pyo3::exceptions::{PyException, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};

use crate::format::{Field, Form, Malformed, Reader, Wire};
use crate::messages::Action;
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
    let deadline = reader.get().map_err(malformed)?;
    let actions = PyList::empty(py);
    while reader.end().is_err() {
        actions.append(action(py, &mut reader)?)?;
    }
    Ok((deadline, actions))
}

fn malformed(malformed: Malformed) -> PyErr {
    PyRuntimeError::new_err(malformed.to_string())
}

fn action<'py>(py: Python<'py>, reader: &mut Reader<'_>) -> PyResult<Bound<'py, PyTuple>> {
    let kind: u8 = reader.get().map_err(malformed)?;
    let known = Action::ALL.iter().find(|it| it.number == kind);
    let known = known.ok_or_else(|| malformed(Malformed("there is no such action")))?;
    fields(py, known.fields, vec![kind.into_bound_py_any(py)?], reader)
}

fn fields<'py>(
    py: Python<'py>,
    of: &[Field],
    mut values: Vec<Bound<'py, PyAny>>,
    reader: &mut Reader<'_>,
) -> PyResult<Bound<'py, PyTuple>> {
    for field in of {
        values.push(one(py, field.form, reader)?);
    }
    PyTuple::new(py, values)
}

fn number<'py, 'a, T>(py: Python<'py>, reader: &mut Reader<'a>) -> PyResult<Bound<'py, PyAny>>
where
    T: Wire<'a> + IntoPyObject<'py>,
{
    let number: T = reader.get().map_err(malformed)?;
    number.into_bound_py_any(py)
}

/// A field: a time as seconds, fences as a dictionary, a group as a tuple.
fn one<'py>(py: Python<'py>, form: Form, reader: &mut Reader<'_>) -> PyResult<Bound<'py, PyAny>> {
    match form {
        Form::U8 | Form::Choice(_) => number::<u8>(py, reader),
        Form::U16 => number::<u16>(py, reader),
        Form::U32 => number::<u32>(py, reader),
        Form::U64 | Form::Fence => number::<u64>(py, reader),
        Form::Flag => number::<bool>(py, reader),
        Form::Millis => {
            let time: Option<Duration> = reader.get().map_err(malformed)?;
            time.map(|it| it.as_secs_f64()).into_bound_py_any(py)
        }
        Form::Text => Ok(text(py, reader)?.into_any()),
        Form::Bytes | Form::Data => {
            Ok(PyBytes::new(py, reader.get().map_err(malformed)?).into_any())
        }
        Form::Fences => {
            let fences = PyDict::new(py);
            for _ in 0..reader.get::<u32>().map_err(malformed)? {
                let key = one(py, Form::Bytes, reader)?;
                fences.set_item(key, one(py, Form::Fence, reader)?)?;
            }
            Ok(fences.into_any())
        }
        Form::Value => value(py, reader),
        Form::Group(group) => Ok(fields(py, group.fields, Vec::new(), reader)?.into_any()),
        Form::Optional(group) => {
            let is_there: bool = reader.get().map_err(malformed)?;
            let value = one(py, Form::Group(group), reader)?;
            Some(value).filter(|_| is_there).into_bound_py_any(py)
        }
        Form::List => {
            let items = PyList::empty(py);
            for _ in 0..reader.get::<u32>().map_err(malformed)? {
                items.append(one(py, Form::Bytes, reader)?)?;
            }
            Ok(items.into_any())
        }
        Form::Seed => Err(malformed(Malformed("no action has such a field"))),
    }
}

/// A server's answer. A server's error is an `Exception`.
fn value<'py>(py: Python<'py>, reader: &mut Reader<'_>) -> PyResult<Bound<'py, PyAny>> {
    match reader.get::<u8>().map_err(malformed)? {
        0 => Ok(py.None().into_bound(py)),
        1 => {
            let number: u64 = reader.get().map_err(malformed)?;
            number.cast_signed().into_bound_py_any(py)
        }
        2 => Ok(text(py, reader)?.into_any()),
        3 => {
            let values = PyList::empty(py);
            for _ in 0..reader.get::<u32>().map_err(malformed)? {
                values.append(value(py, reader)?)?;
            }
            Ok(values.into_any())
        }
        4 => {
            let pairs = PyDict::new(py);
            for _ in 0..reader.get::<u32>().map_err(malformed)? {
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
    let bytes: &[u8] = reader.get().map_err(malformed)?;
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
