//! Scalars: the text of one value becomes what its key takes.
//!
//! In: text as written and the shape of its key. Out: an exact value, or why not.
//! Invariant: no value is rounded or reinterpreted; what is ambiguous is refused with the spelling that is not.

use figment::value::Value;

use super::shape::Shape;
use super::unknown_keys::nearest;
use crate::base::{Bytes, CpuSet, Millis};

/// Why a text is not the value its key takes, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// What is wrong, as the end of a sentence that starts with the text.
    pub what: String,
    /// What to write.
    pub remedy: String,
}

impl Refusal {
    fn new(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            remedy: remedy.into(),
        }
    }
}

/// Whether a plain scalar un-pins its key: `auto`, `null`, `~` or nothing.
#[must_use]
pub fn unpins(text: &str) -> bool {
    matches!(text, "auto" | "null" | "Null" | "NULL" | "~" | "")
}

/// The value of a scalar. Maps and lists are not scalars and are refused.
pub fn value(text: &str, shape: &Shape) -> Result<Value, Refusal> {
    let wanted = || {
        Refusal::new(
            format!("is not {}", shape.wanted()),
            format!("write {}", shape.wanted()),
        )
    };
    match shape {
        Shape::Text => Ok(Value::from(text)),
        Shape::Truth => match text {
            "true" | "True" | "TRUE" => Ok(Value::from(true)),
            "false" | "False" | "FALSE" => Ok(Value::from(false)),
            _ => Err(wanted()),
        },
        Shape::Whole { min, max } => {
            let number = whole(text).map_err(|fault| fault.refusal(text, shape))?;
            if number < *min || number > *max {
                return Err(Refusal::new(
                    "is out of range",
                    format!("write {}", shape.wanted()),
                ));
            }
            Ok(Value::from(number))
        }
        Shape::Number { min, max } => {
            let number = number(text).map_err(|fault| fault.refusal(text, shape))?;
            if number < *min || number > *max {
                return Err(Refusal::new(
                    "is out of range",
                    format!("write {}", shape.wanted()),
                ));
            }
            Ok(Value::from(number))
        }
        Shape::Bytes => quantity(text, |text| text.parse::<Bytes>().ok().map(|bytes| bytes.0))
            .map(Value::from)
            .map_err(|fault| fault.refusal(text, shape)),
        Shape::Millis => quantity(text, |text| text.parse::<Millis>().ok().map(|millis| millis.0))
            .map(Value::from)
            .map_err(|fault| fault.refusal(text, shape)),
        Shape::CpuSet => {
            if text.split([',', '-', ':', '/', ' ']).any(leads_with_zero) {
                return Err(Fault::LeadingZero.refusal(text, shape));
            }
            let set: CpuSet = text.parse().map_err(|error| {
                Refusal::new(
                    format!("is not a set of CPUs: {error}"),
                    "write kernel CPU numbers such as `0-3,8`",
                )
            })?;
            if set.is_empty() {
                return Err(Refusal::new(
                    "names no CPU",
                    "write kernel CPU numbers such as `0-3,8`, or `auto`",
                ));
            }
            Ok(Value::from(set.to_string()))
        }
        Shape::Choice(names) => {
            if names.iter().any(|name| name == text) {
                return Ok(Value::from(text));
            }
            let mut refusal = wanted();
            if let Some(name) = nearest(text, names.iter().map(String::as_str)) {
                refusal.remedy = format!("did you mean `{name}`? {}", refusal.remedy);
            }
            Err(refusal)
        }
        Shape::Map(_) | Shape::List(_) => Err(wanted()),
    }
}

/// Why a text is not a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    LeadingZero,
    Underscore,
    OtherBase,
    Negative,
    NotWhole,
    TooLarge,
    NotANumber,
}

impl Fault {
    fn refusal(self, text: &str, shape: &Shape) -> Refusal {
        let wanted = format!("write {}", shape.wanted());
        match self {
            Self::LeadingZero => {
                let decimal = without_leading_zeros(text);
                // What is no value without the zeros either is refused for that.
                if let Err(refusal) = value(&decimal, shape) {
                    return refusal;
                }
                Refusal::new(
                    "is ambiguous: a leading zero means octal to some readers and decimal to others",
                    format!("write `{decimal}` if it is meant as decimal"),
                )
            }
            Self::Underscore => Refusal::new(
                "holds `_`, which only some readers take as part of a number",
                format!("write `{}`", text.replace('_', "")),
            ),
            Self::OtherBase => Refusal::new("is not decimal", "write the number in decimal"),
            Self::Negative => Refusal::new("is negative", wanted),
            Self::NotWhole => Refusal::new("is not a whole number", wanted),
            Self::TooLarge => Refusal::new("is too large", wanted),
            Self::NotANumber => Refusal::new(format!("is not {}", shape.wanted()), wanted),
        }
    }
}

/// The text with every run of digits written without zeros before it, those of a fraction excepted.
fn without_leading_zeros(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let is_digit = |at: usize| chars.get(at).is_some_and(char::is_ascii_digit);
    let mut out = String::with_capacity(text.len());
    let mut leading = true;
    for (at, &c) in chars.iter().enumerate() {
        if leading && c == '0' && is_digit(at + 1) {
            continue;
        }
        out.push(c);
        leading = !c.is_ascii_digit() && c != '.';
    }
    out
}

/// Whether a run of digits starts with a zero that is not the number 0 itself.
fn leads_with_zero(text: &str) -> bool {
    let mut bytes = text.trim_start_matches(['-', '+']).bytes();
    bytes.next() == Some(b'0') && bytes.next().is_some_and(|b| b.is_ascii_digit())
}

/// What all numbers share: a decimal number with an optional fraction and exponent, and nothing else.
fn decimal(text: &str) -> Result<(bool, &str, &str, i32), Fault> {
    let looks_numeric = |text: &str| {
        text.trim_start_matches(['-', '+'])
            .starts_with(|c: char| c.is_ascii_digit())
    };
    if looks_numeric(text) && text.contains('_') {
        return Err(Fault::Underscore);
    }
    let negative = text.starts_with('-');
    let body = text.strip_prefix(['-', '+']).unwrap_or(text);
    if body.len() > 2 && body.starts_with('0') && body[1..].starts_with(['x', 'X', 'o', 'O', 'b', 'B']) {
        return Err(Fault::OtherBase);
    }
    if leads_with_zero(body) {
        return Err(Fault::LeadingZero);
    }
    let (mantissa, exponent) = match body.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, exponent.parse::<i32>().map_err(|_| Fault::NotANumber)?),
        None => (body, 0),
    };
    let (integer, fraction) = mantissa.split_once('.').unwrap_or((mantissa, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if !digits(integer) || !digits(fraction) {
        return Err(Fault::NotANumber);
    }
    Ok((negative, integer, fraction, exponent))
}

/// A whole number, exactly: `1e3` is 1000, `4.0` is 4, `4.5` is refused.
fn whole(text: &str) -> Result<u64, Fault> {
    let (negative, integer, fraction, exponent) = decimal(text)?;
    let fraction = fraction.trim_end_matches('0');
    let digits = format!("{integer}{fraction}");
    let digits = digits.trim_start_matches('0');
    if digits.is_empty() {
        return Ok(0);
    }
    if negative {
        return Err(Fault::Negative);
    }
    let shift = i64::from(exponent) - fraction.len() as i64;
    // A u64 has at most 20 digits; anything longer cannot fit, whatever its exponent.
    let (digits, zeros) = if shift >= 0 {
        (digits, usize::try_from(shift).map_err(|_| Fault::TooLarge)?)
    } else {
        let cut = usize::try_from(-shift).map_err(|_| Fault::NotWhole)?;
        let kept = digits
            .len()
            .checked_sub(cut)
            .filter(|&kept| kept > 0)
            .ok_or(Fault::NotWhole)?;
        if digits[kept..].bytes().any(|b| b != b'0') {
            return Err(Fault::NotWhole);
        }
        (&digits[..kept], 0)
    };
    if digits.len() + zeros > 20 {
        return Err(Fault::TooLarge);
    }
    format!("{digits}{}", "0".repeat(zeros))
        .parse()
        .map_err(|_| Fault::TooLarge)
}

/// A finite number.
fn number(text: &str) -> Result<f64, Fault> {
    decimal(text)?;
    let number: f64 = text.parse().map_err(|_| Fault::NotANumber)?;
    number.is_finite().then_some(number).ok_or(Fault::TooLarge)
}

/// A whole number, or one with a unit.
fn quantity(text: &str, with_unit: impl Fn(&str) -> Option<u64>) -> Result<u64, Fault> {
    match whole(text) {
        Err(Fault::NotANumber) => with_unit(text).ok_or(Fault::NotANumber),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole_shape() -> Shape {
        Shape::Whole { min: 0, max: 5000 }
    }

    #[test]
    fn whole_numbers_are_exact_or_refused() {
        for (text, expected) in [
            ("0", 0),
            ("8", 8),
            ("1e3", 1000),
            ("1.5e3", 1500),
            ("4.0", 4),
            ("120e-1", 12),
            ("18446744073709551615", u64::MAX),
            ("0e999999999", 0),
        ] {
            assert_eq!(whole(text), Ok(expected), "{text}");
        }
        for (text, fault) in [
            ("010", Fault::LeadingZero),
            ("-010", Fault::LeadingZero),
            ("4_096", Fault::Underscore),
            ("0x10", Fault::OtherBase),
            ("0o17", Fault::OtherBase),
            ("-1", Fault::Negative),
            ("4.5", Fault::NotWhole),
            ("1e-3", Fault::NotWhole),
            ("1e20", Fault::TooLarge),
            ("18446744073709551616", Fault::TooLarge),
            ("1e2147483647", Fault::TooLarge),
            ("1e99999999999", Fault::NotANumber),
            ("no", Fault::NotANumber),
            ("1e", Fault::NotANumber),
            (".5", Fault::NotANumber),
            ("4 096", Fault::NotANumber),
        ] {
            assert_eq!(whole(text), Err(fault), "{text}");
        }
    }

    #[test]
    fn values_take_the_kind_of_their_key() {
        let ok = |text: &str, shape: &Shape| value(text, shape).unwrap();
        assert_eq!(ok("12.10", &Shape::Text).as_str(), Some("12.10"));
        assert_eq!(ok("1e3", &whole_shape()).to_u128(), Some(1000));
        assert_eq!(ok("4GiB", &Shape::Bytes).to_u128(), Some(4 << 30));
        assert_eq!(ok("1e3", &Shape::Bytes).to_u128(), Some(1000));
        assert_eq!(ok("2s", &Shape::Millis).to_u128(), Some(2000));
        assert_eq!(ok("3,0-1", &Shape::CpuSet).as_str(), Some("0-1,3"));
        assert_eq!(ok("false", &Shape::Truth).to_bool(), Some(false));
        let unit = Shape::Number { min: 0.0, max: 1.0 };
        assert_eq!(ok("1e-5", &unit).to_f64(), Some(1e-5));
    }

    #[test]
    fn refusals_name_the_spelling_that_is_meant() {
        let err = |text: &str, shape: &Shape| value(text, shape).unwrap_err();
        assert!(err("010", &whole_shape()).remedy.contains("`10`"));
        assert!(err("4_096", &whole_shape()).remedy.contains("`4096`"));
        assert!(err("6000", &whole_shape()).remedy.contains("to 5000"));
        assert!(err("yes", &Shape::Truth).remedy.contains("true"));
        assert!(err("010GiB", &Shape::Bytes).what.contains("leading zero"));
        assert!(err("0-03", &Shape::CpuSet).what.contains("leading zero"));
        assert_eq!(
            err("0-03", &Shape::CpuSet).remedy,
            "write `0-3` if it is meant as decimal"
        );
        assert!(
            err("00.50", &Shape::Number { min: 0.0, max: 1.0 })
                .remedy
                .contains("`0.50`")
        );
        // A spelling that would be refused too is not suggested.
        for (text, shape) in [
            ("01:30", Shape::Millis),
            ("-010", whole_shape()),
            ("09999", whole_shape()),
        ] {
            let refusal = err(text, &shape);
            assert_eq!(refusal.remedy, format!("write {}", shape.wanted()), "{text}");
        }
        assert!(err("9-1", &Shape::CpuSet).what.contains("ends before"));
        let names = Shape::Choice(vec!["f32".into(), "bf16".into()]);
        assert!(err("fp16", &names).remedy.contains("`bf16`"));
        for text in [".inf", ".nan", "nan", "inf", "1e999"] {
            assert!(
                value(
                    text,
                    &Shape::Number {
                        min: 0.0,
                        max: f64::MAX
                    }
                )
                .is_err(),
                "{text}"
            );
        }
    }
}
