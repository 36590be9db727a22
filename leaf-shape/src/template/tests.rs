use super::*;
use proptest::prelude::*;

const DAY: Day = Day { year: 2026, month: 11, day: 21 };

fn template(text: &str) -> Template {
    text.parse().unwrap()
}

/// Texts that were written once must be read for ever.
#[test]
fn fixed_texts() {
    for (form, number, expected) in [
        ("{n}", 0, "0"),
        ("{n}", i64::MAX, "9223372036854775807"),
        ("{n:06}", 17, "000017"),
        ("{n:b62}", i64::MAX, "AzL8n0Y58m7"),
        ("{n:b36:8}", 1_000_000, "0000LFLS"),
        ("{n:c32}", 1234, "16J"),
        ("R{{{n}}}", 7, "R{7}"),
        ("ORD-{date:%Y-%m-%d}/{n:04}", 7, "ORD-2026-11-21/0007"),
        // The worked examples of the standards, and of the Global Release Identifier.
        ("{n}{luhn}", 7_992_739_871, "79927398713"),
        ("{n}{mod97}", 794, "79444"),
        ("A1-2425G-ABC{n:07}-{mod37}", 1_234_002, "A1-2425G-ABC1234002-M"),
    ] {
        let template = template(form);
        let text = template.write(number, DAY).unwrap();
        assert_eq!(text.as_str(), expected);
        assert_eq!(template.read(expected).unwrap().0, number, "{expected}");
    }
}

#[test]
fn what_tells_no_number_is_refused() {
    for (bad, why) in [
        ("", "exactly once"),
        ("ORD", "exactly once"),
        ("{n}{n}", "exactly once"),
        ("{luhn}{n}", "behind the number"),
        ("{n}{luhn}{mod97}", "behind the number"),
        ("{n:b36}{luhn}", "decimal digits"),
        ("{n:b36}{mod97}", "decimal digits"),
        ("{n:b62}{mod37}", "capitals"),
        ("{n:7}", "none of"),
        ("{n:0}", "none of"),
        ("{n:020}", "none of"),
        ("{n:b36:14}", "none of"),
        ("{n:b36:}", "none of"),
        ("{n:b16}", "none of"),
        ("{date:%H}{n}", "none of"),
        ("{date}{n}", "none of"),
        ("{N}", "none of"),
        ("{n", "without its }"),
        ("}{n}", "without its {"),
        ("ä{n}", "ASCII"),
        ("a {n}", "blank"),
        ("a\"{n}", "quotation mark"),
        ("a\\{n}", "backslash"),
        ("{n}-----------------------------------------------------", "up to 72"),
    ] {
        let error = bad.parse::<Template>().unwrap_err().to_string();
        assert!(error.contains(why), "{bad}: {error}");
    }
    assert!(format!("{{n}}{}", "{date:%d}".repeat(40)).parse::<Template>().is_err());
}

#[test]
fn a_number_that_does_not_fit_has_no_text() {
    let padded = template("{n:06}");
    assert_eq!(padded.capacity(), 1_000_000);
    assert!(padded.write(999_999, DAY).is_some());
    assert_eq!((padded.write(1_000_000, DAY), padded.write(-1, DAY)), (None, None));
    let short = template("{date:%y}{n}");
    assert!(short.write(1, Day { year: 2100, ..DAY }).is_none());
}

#[test]
fn only_the_exact_text_is_read() {
    let template = template("A{date:%y%m%d}-{n:c32}{mod37}");
    let text = template.write(4711, DAY).unwrap();
    assert_eq!(template.read(text.as_str()), Ok((4711, Some(DAY))));
    for other in [
        "",
        "A",
        "B261121-4K711",
        "A261131-4K711",
        "A261121-04K711",
        "A261121-4k711",
        "A261121--4K711",
    ] {
        assert!(template.read(other).is_err(), "{other}");
    }
}

const FORMS: [&str; 6] = [
    "{n}",
    "ORD-{date:%y%m%d}{n:06}{luhn}",
    "{n:b62}",
    "X{n:b36:9}{mod37}",
    "{date:%Y}.{n:c32}{mod37}-Z",
    "{n:012}{luhn}",
];

proptest! {
    #[test]
    fn every_text_is_read_back_and_no_other(
        form in 0..FORMS.len(), number in 0i64..=i64::MAX, year in 2000u16..2100, month in 1u8..13, day in 1u8..29,
    ) {
        let template = template(FORMS[form]);
        let number = number % template.capacity();
        let day = Day { year, month, day };
        let text = template.write(number, day).unwrap();
        let (read, read_day) = template.read(text.as_str()).unwrap();
        prop_assert_eq!(read, number);
        if template.date_parts() == (true, true, true) {
            prop_assert_eq!(read_day, Some(day));
        }
    }

    /// A check digit finds every single altered character.
    #[test]
    fn one_altered_character_is_found(
        form in prop::sample::select(vec![1usize, 3, 4, 5]), number in 0i64..1_000_000, place in 0usize..64, byte in 0x21u8..0x7f,
    ) {
        let template = template(FORMS[form]);
        let text = template.write(number, DAY).unwrap();
        let mut bytes = text.as_str().as_bytes().to_vec();
        let place = place % bytes.len();
        prop_assume!(bytes[place] != byte);
        bytes[place] = byte;
        let altered = String::from_utf8(bytes).unwrap();
        prop_assert!(template.read(&altered).is_err(), "{} for {}", altered, text);
    }

    #[test]
    fn anything_else_is_refused_without_a_panic(form in "\\PC{0,30}", text in "\\PC{0,30}") {
        if let Ok(template) = form.parse::<Template>() {
            let _ = template.read(&text);
        }
        for form in FORMS {
            if let Ok((number, day)) = template(form).read(&text) {
                let again = template(form).write(number, day.unwrap_or(DAY));
                prop_assert_eq!(again.unwrap().to_string(), text.clone());
            }
        }
    }

    #[test]
    fn padded_texts_sort_like_their_numbers(one in 0i64..1_000_000, other in 0i64..1_000_000) {
        for form in ["{n:06}", "{n:b36:5}", "{n:b62:5}", "{n:c32:5}"] {
            let write = |n| template(form).write(n, DAY).unwrap().to_string();
            prop_assert_eq!(write(one).cmp(&write(other)), one.cmp(&other));
        }
    }
}
