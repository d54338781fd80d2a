//! Server-sent events, out of the bytes of a stream.

use std::collections::VecDeque;

/// The most bytes of one line, and of the data of one event.
const MAX: usize = 4 << 20;
/// The most bytes of an id, which every later event has a copy of.
const MAX_ID: usize = 1 << 10;

/// An event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Event {
    /// Its type; empty if not said.
    pub(super) kind: String,
    /// Its data, lines with line ends between them.
    pub(super) data: String,
    /// The id that was said last, in this event or before.
    pub(super) id: String,
}

/// Takes bytes as they come, and gives events when they are whole.
#[derive(Debug, Default)]
pub(super) struct Decoder {
    line: Vec<u8>,
    /// Whether the last byte was a carriage return: a line feed after it ends no second line.
    returned: bool,
    kind: String,
    data: Option<String>,
    id: String,
    ready: VecDeque<Event>,
}

impl Decoder {
    /// More bytes of the stream.
    ///
    /// # Errors
    /// A line or an event is longer than any that is taken.
    pub(super) fn take(&mut self, bytes: &[u8]) -> Result<(), String> {
        for byte in bytes {
            let returned = std::mem::replace(&mut self.returned, *byte == b'\r');
            match byte {
                b'\n' if returned => {}
                b'\n' | b'\r' => self.end_line()?,
                byte if self.line.len() < MAX => self.line.push(*byte),
                _ => return Err(format!("a line of events is longer than {MAX} bytes")),
            }
        }
        Ok(())
    }

    /// The next event that is whole.
    pub(super) fn next(&mut self) -> Option<Event> {
        self.ready.pop_front()
    }

    fn end_line(&mut self) -> Result<(), String> {
        let line = std::mem::take(&mut self.line);
        let line = String::from_utf8_lossy(&line);
        if line.is_empty() {
            let kind = std::mem::take(&mut self.kind);
            if let Some(data) = self.data.take() {
                let id = self.id.clone();
                self.ready.push_back(Event { kind, data, id });
            }
            return Ok(());
        }
        let (field, value) = line.split_once(':').unwrap_or((&line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => self.kind = value.to_owned(),
            "id" if value.len() > MAX_ID => {
                return Err(format!("an id of an event is longer than {MAX_ID} bytes"));
            }
            "id" if !value.contains('\0') => self.id = value.to_owned(),
            "data" => match &mut self.data {
                None => self.data = Some(value.to_owned()),
                Some(data) if data.len() + value.len() < MAX => {
                    data.push('\n');
                    data.push_str(value);
                }
                Some(_) => return Err(format!("an event has more than {MAX} bytes")),
            },
            // Comments and what is not known.
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &[u8] = b": hello\nid: 1-1\nevent: room\ndata: {\"a\":\ndata: 1}\n\n\
        event: nothing\n\ndata:x\r\n\r\nid\ndata\r\runfinished";

    fn all(pieces: &[&[u8]]) -> Vec<Event> {
        let mut decoder = Decoder::default();
        for piece in pieces {
            decoder.take(piece).unwrap();
        }
        std::iter::from_fn(|| decoder.next()).collect()
    }

    fn event(kind: &str, data: &str, id: &str) -> Event {
        Event {
            kind: kind.to_owned(),
            data: data.to_owned(),
            id: id.to_owned(),
        }
    }

    #[test]
    fn events_have_their_type_data_and_the_last_id() {
        let wanted = [
            event("room", "{\"a\":\n1}", "1-1"),
            event("", "x", "1-1"),
            event("", "", ""),
        ];
        assert_eq!(all(&[STREAM]), wanted);
    }

    #[test]
    fn it_does_not_matter_where_the_stream_is_cut() {
        let whole = all(&[STREAM]);
        for at in 0..STREAM.len() {
            let (a, b) = STREAM.split_at(at);
            assert_eq!(all(&[a, b]), whole, "cut at {at}");
        }
    }

    #[test]
    fn an_id_that_every_later_event_would_repeat_is_short() {
        let mut decoder = Decoder::default();
        let line = |bytes: usize| format!("id: {}\ndata\n\n", "x".repeat(bytes));
        decoder.take(line(MAX_ID).as_bytes()).unwrap();
        assert_eq!(decoder.next().unwrap().id.len(), MAX_ID);
        assert!(decoder.take(line(MAX_ID + 1).as_bytes()).is_err());
    }

    #[test]
    fn a_stream_without_an_end_of_line_is_refused_before_it_fills_the_memory() {
        let mut decoder = Decoder::default();
        let piece = vec![b'x'; 1 << 20];
        let taken = (0..16).take_while(|_| decoder.take(&piece).is_ok()).count();
        assert!(taken < 8, "{taken}");
        let mut decoder = Decoder::default();
        let line = [b"data: ".as_slice(), &piece, b"\n"].concat();
        let taken = (0..16).take_while(|_| decoder.take(&line).is_ok()).count();
        assert!(taken < 8, "{taken}");
    }
}
