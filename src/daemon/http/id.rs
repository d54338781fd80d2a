//! 64-bit numbers in JSON: a string in answers, a number or a string in requests.
//!
//! A number above 2^53 does not survive most JSON parsers; a string does.

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;
use std::fmt;
use utoipa::openapi::schema::{ObjectBuilder, OneOfBuilder, Schema, SchemaType, Type};
use utoipa::openapi::{KnownFormat, RefOr, SchemaFormat};
use utoipa::{PartialSchema, ToSchema};

/// An unsigned 64-bit number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Id(pub(crate) u64);

const WANTED: &str = "a whole number from 0 to 18446744073709551615, or a string of its digits";

impl Id {
    /// Reads decimal digits, and nothing else.
    pub(crate) fn parse(text: &str) -> Option<Id> {
        let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        digits.then(|| text.parse().ok().map(Id)).flatten()
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl Serialize for Id {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Id {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Id, D::Error> {
        struct Either;
        impl Visitor<'_> for Either {
            type Value = Id;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(WANTED)
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<Id, E> {
                Ok(Id(number))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Id, E> {
                Id::parse(text)
                    .ok_or_else(|| E::invalid_value(serde::de::Unexpected::Str(text), &self))
            }
        }
        deserializer.deserialize_any(Either)
    }
}

impl PartialSchema for Id {
    fn schema() -> RefOr<Schema> {
        let digits = ObjectBuilder::new()
            .schema_type(SchemaType::Type(Type::String))
            .pattern(Some("^[0-9]{1,20}$"))
            .description(Some("Its digits; answers have this form."))
            .build();
        let number = ObjectBuilder::new()
            .schema_type(SchemaType::Type(Type::Integer))
            .format(Some(SchemaFormat::KnownFormat(KnownFormat::Int64)))
            .minimum(Some(0))
            .build();
        let either = OneOfBuilder::new().item(digits).item(number);
        let text = "A whole number from 0 to 18446744073709551615.";
        either.description(Some(text)).into()
    }
}

impl ToSchema for Id {
    fn name() -> Cow<'static, str> {
        "Id".into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<Id, String> {
        serde_json::from_str(json).map_err(|e| e.to_string())
    }

    #[test]
    fn numbers_and_strings_of_digits_are_ids_up_to_the_largest() {
        assert_eq!(read("42"), Ok(Id(42)));
        assert_eq!(read("\"42\""), Ok(Id(42)));
        assert_eq!(read("\"18446744073709551615\""), Ok(Id(u64::MAX)));
        assert_eq!(read("18446744073709551615"), Ok(Id(u64::MAX)));
        assert_eq!(
            serde_json::to_string(&Id(u64::MAX)).unwrap(),
            "\"18446744073709551615\""
        );
    }

    #[test]
    fn what_is_no_id_is_refused_with_what_one_is() {
        for json in [
            "-1",
            "1.5",
            "18446744073709551616",
            "\"18446744073709551616\"",
            "\"-1\"",
            "\"+1\"",
            "\"\"",
            "\" 1\"",
            "null",
            "[]",
            "true",
            "1e300",
        ] {
            let why = read(json).unwrap_err();
            assert!(why.contains("18446744073709551615"), "{json}: {why}");
        }
    }
}
