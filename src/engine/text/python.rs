//! What chat templates expect of Python: `json.dumps`, `strftime`, values from JSON.
//!
//! In: template values. Out: text as Python writes it. Invariant: keys keep their order; nothing is HTML-escaped.

use std::fmt::Write as _;

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind};

/// A JSON value as a template value, keys in order.
pub fn value_of(json: &serde_json::Value) -> Value {
    use serde_json::Value as Json;
    match json {
        Json::Null => Value::from(()),
        Json::Bool(flag) => Value::from(*flag),
        Json::Number(number) => number
            .as_i64()
            .map(Value::from)
            .or_else(|| number.as_u64().map(Value::from))
            .or_else(|| number.as_f64().map(Value::from))
            .unwrap_or_else(|| Value::from(number.to_string())),
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(items) => items.iter().map(value_of).collect(),
        Json::Object(map) => {
            Value::from_pairs(map.iter().map(|(key, value)| (key.as_str(), value_of(value))))
        }
    }
}

/// `json.dumps(value, ensure_ascii=False, indent=indent)`.
///
/// # Errors
/// An undefined value or one JSON has no form for, as Python refuses it.
pub fn to_json(value: &Value, indent: Option<usize>) -> Result<String, Error> {
    let mut out = String::new();
    write_json(value, indent, 0, &mut out)?;
    Ok(out)
}

/// Deeper values are refused; the template engine's own limit is of this order.
const MAX_DEPTH: usize = 128;

fn write_json(value: &Value, indent: Option<usize>, depth: usize, out: &mut String) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(Error::new(
            ErrorKind::BadSerialization,
            "the value is nested too deep for tojson",
        ));
    }
    let open = |out: &mut String, depth: usize| {
        if let Some(width) = indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', width * depth));
        }
    };
    let separator = if indent.is_some() { "," } else { ", " };
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => write_number(value, out),
        ValueKind::String => write_string(value.as_str().unwrap_or_default(), out),
        ValueKind::Seq | ValueKind::Iterable => {
            out.push('[');
            let mut empty = true;
            for item in value.try_iter()? {
                if !empty {
                    out.push_str(separator);
                }
                empty = false;
                open(out, depth + 1);
                write_json(&item, indent, depth + 1, out)?;
            }
            if !empty {
                open(out, depth);
            }
            out.push(']');
        }
        ValueKind::Map => {
            out.push('{');
            let mut empty = true;
            for key in value.try_iter()? {
                if !empty {
                    out.push_str(separator);
                }
                empty = false;
                open(out, depth + 1);
                match key.as_str() {
                    Some(text) => write_string(text, out),
                    None => write_string(&key.to_string(), out),
                }
                out.push_str(": ");
                write_json(&value.get_item(&key)?, indent, depth + 1, out)?;
            }
            if !empty {
                open(out, depth);
            }
            out.push('}');
        }
        other => {
            return Err(Error::new(
                ErrorKind::BadSerialization,
                format!("a value of kind {other} has no JSON form"),
            ));
        }
    }
    Ok(())
}

/// Integers plainly; floats as Python's `repr` does for the usual range (`1.0`, `0.5`).
fn write_number(value: &Value, out: &mut String) {
    let _infallible = write!(out, "{value}");
}

fn write_string(text: &str, out: &mut String) {
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if u32::from(c) < 0x20 => {
                let _infallible = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = [
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
    "Sunday",
];

/// `datetime.strftime` in UTC for the directives templates use; `None` for one we do not know.
pub fn strftime(format: &str, unix_seconds: u64) -> Option<String> {
    let (days, second_of_day) = (unix_seconds / 86_400, unix_seconds % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (second_of_day / 3600, second_of_day / 60 % 60, second_of_day % 60);
    let weekday = DAYS[(days as usize + 3) % 7]; // 1970-01-01 was a Thursday
    let month_name = MONTHS[month as usize - 1];
    let mut out = String::new();
    let mut letters = format.chars();
    while let Some(letter) = letters.next() {
        if letter != '%' {
            out.push(letter);
            continue;
        }
        let part = match letters.next()? {
            'Y' => year.to_string(),
            'y' => format!("{:02}", year % 100),
            'm' => format!("{month:02}"),
            'd' => format!("{day:02}"),
            'e' => format!("{day:2}"),
            '-' => match letters.next()? {
                'd' => day.to_string(),
                'm' => month.to_string(),
                _ => return None,
            },
            'B' => month_name.to_owned(),
            'b' | 'h' => month_name[..3].to_owned(),
            'A' => weekday.to_owned(),
            'a' => weekday[..3].to_owned(),
            'H' => format!("{hour:02}"),
            'I' => format!("{:02}", (hour + 11) % 12 + 1),
            'M' => format!("{minute:02}"),
            'S' => format!("{second:02}"),
            'p' => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            'F' => format!("{year}-{month:02}-{day:02}"),
            'T' => format!("{hour:02}:{minute:02}:{second:02}"),
            'Z' => "UTC".to_owned(),
            'z' => "+0000".to_owned(),
            '%' => "%".to_owned(),
            _ => return None,
        };
        out.push_str(&part);
    }
    Some(out)
}

/// Year, month (1–12) and day (1–31) of a day counted from 1970-01-01, Gregorian calendar.
fn civil(mut days: u64) -> (u64, u64, u64) {
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    // Whole 400-year cycles first, so that the loops below are short for any input.
    let mut year = 1970 + days / 146_097 * 400;
    days %= 146_097;
    loop {
        let length = if leap(year) { 366 } else { 365 };
        if days < length {
            break;
        }
        days -= length;
        year += 1;
    }
    let february = if leap(year) { 29 } else { 28 };
    let lengths = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 1;
    for length in lengths {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    (year, month, days + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_written_as_python_writes_it() {
        let json = serde_json::json!({"b": [1, 2.5, "ä<'\"\n\u{1}"], "a": {}, "n": null, "t": true, "e": []});
        let value = value_of(&json);
        assert_eq!(
            to_json(&value, None).unwrap(),
            r#"{"b": [1, 2.5, "ä<'\"\n\u0001"], "a": {}, "n": null, "t": true, "e": []}"#
        );
        assert_eq!(
            to_json(&value_of(&serde_json::json!({"a": [1, 2]})), Some(2)).unwrap(),
            "{\n  \"a\": [\n    1,\n    2\n  ]\n}"
        );
        assert_eq!(to_json(&Value::from(1.0), None).unwrap(), "1.0");
        assert!(to_json(&Value::UNDEFINED, None).is_err());
    }

    #[test]
    fn dates_in_utc() {
        // 2024-02-29 13:05:09 UTC, a Thursday.
        let time = 1_709_211_909;
        assert_eq!(strftime("%d %b %Y", time).unwrap(), "29 Feb 2024");
        assert_eq!(
            strftime("%A %B %-d, %I:%M %p %F %T", time).unwrap(),
            "Thursday February 29, 01:05 PM 2024-02-29 13:05:09"
        );
        assert_eq!(strftime("%Y-%m-%d", 0).unwrap(), "1970-01-01");
        assert_eq!(strftime("%Q", 0), None);
    }
}
