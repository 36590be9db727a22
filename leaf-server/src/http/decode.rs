//! `/decodeSnowflakeId`: takes a snowflake id apart, in the shape of the Java Leaf.

use hyper::StatusCode;
use jiff::Timestamp;
use leaf_core::{Id, Layout, Parts};
use percent_encoding::percent_decode_str;
use serde_json::json;

use super::Generators;
use super::answer::{Answer, json};

/// `{"timestamp": "1567733700834(2019-09-06 09:35:00.834)", "workerId": "3", "sequenceId": "39"}`
pub(super) fn answer(generators: &Generators, query: Option<&str>) -> Answer {
    match read(query, generators.layout) {
        Ok(parts) => {
            let millis = parts.timestamp.get();
            // Beyond the calendar's end the number must do.
            let local = i64::try_from(millis)
                .ok()
                .and_then(|millis| Timestamp::from_millisecond(millis).ok())
                .map(|at| at.to_zoned(generators.time_zone.clone()))
                .map(|at| at.strftime("(%Y-%m-%d %H:%M:%S%.3f)").to_string());
            let (datacenter, worker) = generators.layout.datacenter_of(parts.worker);
            let mut answer = json!({
                "timestamp": format!("{millis}{}", local.unwrap_or_default()),
                "workerId": worker.to_string(),
                "sequenceId": parts.sequence.to_string(),
            });
            if generators.layout.datacenter_bits() > 0 {
                answer["datacenterId"] = datacenter.to_string().into();
            }
            json(StatusCode::OK, &answer)
        }
        Err(why) => json(StatusCode::BAD_REQUEST, &json!({ "errorMsg": why })),
    }
}

fn read(query: Option<&str>, layout: Layout) -> Result<Parts, &'static str> {
    let value = query
        .unwrap_or_default()
        .split('&')
        .find_map(|pair| pair.strip_prefix("snowflakeId="))
        .ok_or("snowflakeId is missing: write /decodeSnowflakeId?snowflakeId=N")?;
    let id: Id =
        percent_decode_str(value).decode_utf8().ok().and_then(|text| text.parse().ok()).ok_or(
            "snowflakeId is not an id: give a decimal number from 0 to 9223372036854775807",
        )?;
    layout.decode(id).ok_or("snowflakeId has bits that the configured layout does not use")
}
