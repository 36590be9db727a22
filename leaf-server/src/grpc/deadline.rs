//! Reads the header `grpc-timeout`, which says how long a client waits for its answer.
//!
//! Source: gRPC over HTTP/2, "Requests": 1 to 8 digits and a unit.

use std::time::Duration;

use hyper::header::HeaderMap;

/// Returns how long the client waits for the answer; `None` without the header. The error is a
/// sentence for the client.
pub(super) fn of(headers: &HeaderMap) -> Result<Option<Duration>, &'static str> {
    let Some(written) = headers.get("grpc-timeout") else { return Ok(None) };
    let parsed = written.to_str().ok().and_then(parse);
    parsed.map(Some).ok_or("grpc-timeout: give up to 8 digits and one of H, M, S, m, u, n")
}

/// `TimeoutValue TimeoutUnit`: at most eight digits and one of `HMSmun`.
fn parse(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if !(1..=8).contains(&digits.len()) || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let number: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(number * 3600),
        "M" => Duration::from_secs(number * 60),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_client_waits_is_read() {
        for (text, millis) in
            [("1H", 3_600_000), ("2M", 120_000), ("3S", 3000), ("4m", 4), ("5000u", 5)]
        {
            assert_eq!(parse(text), Some(Duration::from_millis(millis)), "{text}");
        }
        assert_eq!(parse("99999999n"), Some(Duration::from_nanos(99_999_999)));
        assert_eq!(parse("99999999H"), Some(Duration::from_secs(99_999_999 * 3600)));
        for bad in ["", "1", "S", "1s", "+1S", "-1S", "1.5S", "123456789S", "1é", "1 S"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
