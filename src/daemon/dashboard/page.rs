//! The page: its files joined, and the policy that fits them.

use sha2::{Digest, Sha256};
use std::sync::LazyLock;

const FRAME: &str = include_str!("page/index.html");
const STYLE: &str = include_str!("page/style.css");
/// One script in one scope, in this order.
const SCRIPT: &str = concat!(
    include_str!("page/core.js"),
    include_str!("page/live.js"),
    include_str!("page/charts.js"),
    include_str!("page/store.js"),
    include_str!("page/overview.js"),
    include_str!("page/rooms.js"),
    include_str!("page/room.js"),
    include_str!("page/main.js"),
);

/// The page of this build.
pub(super) static PAGE: LazyLock<Page> = LazyLock::new(Page::new);

/// What is sent to a browser.
pub(super) struct Page {
    /// Everything, in one document.
    pub(super) html: String,
    /// `Content-Security-Policy`.
    pub(super) policy: String,
    /// Names this content, in quotes.
    pub(super) etag: String,
}

impl Page {
    fn new() -> Page {
        let html = FRAME
            .replacen("/*style*/", STYLE, 1)
            .replacen("/*script*/", SCRIPT, 1);
        let policy = [
            "default-src 'none'".to_owned(),
            format!("script-src '{}'", hash(SCRIPT)),
            format!("style-src '{}'", hash(STYLE)),
            "connect-src 'self'".to_owned(),
            // The icon, which is in the page.
            "img-src data:".to_owned(),
            "base-uri 'none'".to_owned(),
            "form-action 'none'".to_owned(),
            "frame-ancestors 'none'".to_owned(),
            "require-trusted-types-for 'script'".to_owned(),
            "trusted-types 'none'".to_owned(),
        ]
        .join("; ");
        let etag = format!("\"{}\"", hash(&html));
        Page { html, policy, etag }
    }
}

/// The hash of a text as a policy names it: `sha256-` and base64.
fn hash(text: &str) -> String {
    format!("sha256-{}", base64(&Sha256::digest(text.as_bytes())))
}

/// Base64 with padding (RFC 4648, section 4).
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let word = (0..3).fold(0_u32, |word, at| {
            word << 8 | u32::from(group.get(at).copied().unwrap_or(0))
        });
        for at in 0..4 {
            if at <= group.len() {
                text.push(char::from(DIGITS[(word >> (18 - 6 * at) & 63) as usize]));
            } else {
                text.push('=');
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_and_the_style_are_in_the_page_as_they_were_hashed() {
        assert!(PAGE.html.contains(&format!("<style>{STYLE}</style>")));
        assert!(
            PAGE.html
                .contains(&format!("<script type=\"module\">{SCRIPT}</script>"))
        );
        // What would end the element before its end, and change what is hashed.
        assert!(!SCRIPT.contains("</script") && !SCRIPT.contains("<!--"));
        assert!(!STYLE.contains("</style"));
        assert!(!FRAME.contains('\r') && !SCRIPT.contains('\r') && !STYLE.contains('\r'));
    }

    #[test]
    fn nothing_in_the_page_comes_from_elsewhere_or_turns_a_string_into_markup() {
        let page = PAGE
            .html
            // Names of what an element is; nothing is loaded from there.
            .replace("http://www.w3.org/2000/svg", "");
        for forbidden in [
            "http://",
            "https://",
            "//cdn",
            "@import",
            "url(",
            "innerHTML",
            "outerHTML",
            "insertAdjacent",
            "document.write",
            "eval(",
            "new Function",
            " onclick=",
            " onload=",
            " style=",
        ] {
            assert!(!page.contains(forbidden), "the page has {forbidden:?}");
        }
    }

    #[test]
    fn the_policy_allows_this_script_and_this_style_alone() {
        assert!(PAGE.policy.starts_with("default-src 'none'; "));
        for allowed in ["unsafe-inline", "unsafe-eval", "*", "http"] {
            assert!(!PAGE.policy.contains(allowed), "{}", PAGE.policy);
        }
        assert!(
            PAGE.policy
                .contains(&format!("script-src '{}';", hash(SCRIPT)))
        );
    }

    #[test]
    fn a_hash_is_what_a_browser_computes() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
        assert_eq!(
            hash("alert('Hello, world.');"),
            "sha256-qznLcsROx4GACP2dm0UCKCzCG+HiZ1guq6ZZDob/Tng="
        );
    }
}
