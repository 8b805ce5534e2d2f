//! The simple index of Python packages, read from HTML (PEP 503) or JSON (PEP 691) and written in either.

use std::fmt::Write;

use serde::Deserialize;
use serde_json::{Value, json};
use url::Url;

/// Files of a project.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SimpleIndex {
    pub(super) files: Vec<SimpleFile>,
}

/// A file of a project.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SimpleFile {
    pub(super) filename: String,
    pub(super) url: Url,
    pub(super) sha256: Option<String>,
    pub(super) requires_python: Option<String>,
    pub(super) upload_time: Option<String>,
    pub(super) is_yanked: bool,
    /// SHA-256 of the file's metadata, which is beside it (PEP 658).
    pub(super) metadata_sha256: Option<String>,
    pub(super) bytes: Option<u64>,
}

#[derive(Deserialize)]
struct JsonIndex {
    files: Vec<JsonFile>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct JsonFile {
    filename: String,
    url: String,
    #[serde(default)]
    hashes: Value,
    #[serde(default)]
    requires_python: Option<String>,
    #[serde(default)]
    upload_time: Option<String>,
    #[serde(default)]
    yanked: Value,
    #[serde(default)]
    core_metadata: Value,
    #[serde(default)]
    dist_info_metadata: Value,
    #[serde(default)]
    size: Option<u64>,
}

impl SimpleIndex {
    /// Reads an index. Files with an address that cannot be read are left out.
    pub(super) fn parse(body: &[u8], content_type: &str, base: &Url) -> Option<Self> {
        if content_type.contains("json") {
            let index: JsonIndex = serde_json::from_slice(body).ok()?;
            let files = index.files.into_iter().filter_map(|file| file.into_simple(base)).collect();
            return Some(Self { files });
        }
        let text = std::str::from_utf8(body).ok()?;
        let files = anchors(text).filter_map(|anchor| file_of_anchor(&anchor, base)).collect();
        Some(Self { files })
    }

    /// Writes the index as HTML, with the addresses of the proxy.
    pub(super) fn to_html(&self, project: &str) -> String {
        let mut html = format!(
            "<!DOCTYPE html>\n<html><head><meta name=\"pypi:repository-version\" content=\"1.0\">\
             <title>Links for {project}</title></head><body>\n"
        );
        for file in &self.files {
            let mut attributes = String::new();
            let mut add = |name: &str, value: &str| {
                let _ = write!(attributes, " {name}=\"{}\"", escape_html(value));
            };
            if let Some(text) = &file.requires_python {
                add("data-requires-python", text);
            }
            if let Some(digest) = &file.metadata_sha256 {
                add("data-core-metadata", &format!("sha256={digest}"));
                add("data-dist-info-metadata", &format!("sha256={digest}"));
            }
            if let Some(time) = &file.upload_time {
                add("data-upload-time", time);
            }
            let name = escape_html(&file.filename);
            let digest = file.sha256.as_deref().unwrap_or_default();
            let _ = writeln!(
                html,
                "<a href=\"/pypi/files/{project}/{name}#sha256={digest}\"{attributes}>{name}</a><br>"
            );
        }
        html.push_str("</body></html>\n");
        html
    }

    /// Writes the index as JSON, with the addresses of the proxy.
    pub(super) fn to_json(&self, project: &str) -> String {
        let files: Vec<Value> = self.files.iter().map(|file| file.to_json(project)).collect();
        json!({ "meta": { "api-version": "1.0" }, "name": project, "files": files }).to_string()
    }
}

impl SimpleFile {
    fn to_json(&self, project: &str) -> Value {
        let metadata = match &self.metadata_sha256 {
            Some(digest) => json!({ "sha256": digest }),
            None => json!(false),
        };
        let mut file = json!({
            "filename": self.filename,
            "url": format!("/pypi/files/{project}/{}", self.filename),
            "hashes": { "sha256": self.sha256.as_deref().unwrap_or_default() },
            // The older name of this field ends pip 23.0, which Debian 12 has, with an error.
            "core-metadata": metadata,
            "yanked": false,
        });
        let optional = [
            ("requires-python", self.requires_python.as_ref().map(|it| json!(it))),
            ("upload-time", self.upload_time.as_ref().map(|it| json!(it))),
            ("size", self.bytes.map(|it| json!(it))),
        ];
        for (key, value) in optional {
            if let Some(value) = value {
                file[key] = value;
            }
        }
        file
    }
}

impl JsonFile {
    fn into_simple(self, base: &Url) -> Option<SimpleFile> {
        let digest = |value: &Value| value.get("sha256").and_then(Value::as_str).map(str::to_owned);
        Some(SimpleFile {
            url: base.join(&self.url).ok()?,
            sha256: digest(&self.hashes),
            requires_python: self.requires_python,
            upload_time: self.upload_time,
            is_yanked: match &self.yanked {
                Value::Null => false,
                Value::Bool(yanked) => *yanked,
                _ => true,
            },
            metadata_sha256: digest(&self.core_metadata)
                .or_else(|| digest(&self.dist_info_metadata)),
            bytes: self.size,
            filename: self.filename,
        })
    }
}

/// An anchor of a page: its attributes, and its text.
struct Anchor {
    attributes: Vec<(String, String)>,
    text: String,
}

impl Anchor {
    fn attribute(&self, name: &str) -> Option<&str> {
        let found = self.attributes.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| value.as_str())
    }
}

/// Finds the anchors of a page.
fn anchors(page: &str) -> impl Iterator<Item = Anchor> {
    let mut parts = page.split("<a ");
    parts.next();
    parts.filter_map(|part| {
        let (attributes, rest) = parse_attributes(part)?;
        let text = rest.split('<').next().unwrap_or_default();
        Some(Anchor { attributes, text: unescape_html(text.trim()) })
    })
}

/// Reads attributes up to the end of the tag. Returns them and what comes after the tag.
fn parse_attributes(mut rest: &str) -> Option<(Vec<(String, String)>, &str)> {
    let mut attributes = Vec::new();
    loop {
        rest = rest.trim_start();
        if let Some(after) = rest.strip_prefix('>') {
            return Some((attributes, after));
        }
        let end = rest.find(|c: char| c == '=' || c == '>' || c.is_whitespace())?;
        let (name, after) = rest.split_at(end);
        let name = name.to_ascii_lowercase();
        let after = after.trim_start();
        let Some(after) = after.strip_prefix('=') else {
            attributes.push((name, String::new()));
            rest = after;
            continue;
        };
        let after = after.trim_start();
        let quote = after.chars().next().filter(|c| matches!(c, '"' | '\''));
        let (value, after) = match quote {
            Some(quote) => after.get(1..)?.split_once(quote)?,
            None => after.split_at(after.find(|c: char| c == '>' || c.is_whitespace())?),
        };
        attributes.push((name, unescape_html(value)));
        rest = after;
    }
}

fn file_of_anchor(anchor: &Anchor, base: &Url) -> Option<SimpleFile> {
    let mut url = base.join(anchor.attribute("href")?).ok()?;
    let sha256 = url.fragment().and_then(|it| it.strip_prefix("sha256=")).map(str::to_owned);
    url.set_fragment(None);
    let attribute = |name: &str| anchor.attribute(name).map(str::to_owned);
    let metadata = attribute("data-core-metadata").or_else(|| attribute("data-dist-info-metadata"));
    Some(SimpleFile {
        filename: anchor.text.clone(),
        url,
        sha256,
        requires_python: attribute("data-requires-python"),
        upload_time: attribute("data-upload-time"),
        is_yanked: attribute("data-yanked").is_some(),
        metadata_sha256: metadata.and_then(|it| it.strip_prefix("sha256=").map(str::to_owned)),
        bytes: None,
    })
}

fn unescape_html(text: &str) -> String {
    text.replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&quot;", "\"")
        .replace("&#34;", "\"")
        .replace("&#39;", "'")
        .replace("&#x27;", "'")
        .replace("&amp;", "&")
}

fn escape_html(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn base() -> Url {
        "https://index.example/simple/x/".parse().unwrap()
    }

    fn file() -> SimpleFile {
        SimpleFile {
            filename: "x-1.0.tar.gz".to_owned(),
            url: "https://files.example/x-1.0.tar.gz".parse().unwrap(),
            sha256: Some("aa".to_owned()),
            requires_python: Some(">=3.8, <4".to_owned()),
            upload_time: Some("2024-01-01T00:00:00Z".to_owned()),
            is_yanked: false,
            metadata_sha256: Some("bb".to_owned()),
            bytes: None,
        }
    }

    #[test]
    fn html_and_json_say_the_same() {
        let html = r#"<html><body><h1>x</h1>
            <a href="https://files.example/x-1.0.tar.gz#sha256=aa" data-requires-python="&gt;=3.8, &lt;4"
               data-upload-time='2024-01-01T00:00:00Z' data-core-metadata="sha256=bb">x-1.0.tar.gz</a><br/>
            <a data-yanked href=../../f/x-2.0.zip>x-2.0.zip</a></body></html>"#;
        let json = r#"{"files":[
            {"filename":"x-1.0.tar.gz","url":"https://files.example/x-1.0.tar.gz","hashes":{"sha256":"aa"},
             "requires-python":">=3.8, <4","upload-time":"2024-01-01T00:00:00Z","core-metadata":{"sha256":"bb"}},
            {"filename":"x-2.0.zip","url":"../../f/x-2.0.zip","hashes":{},"yanked":"broken"}]}"#;
        let yanked = SimpleFile {
            filename: "x-2.0.zip".to_owned(),
            url: "https://index.example/f/x-2.0.zip".parse().unwrap(),
            sha256: None,
            requires_python: None,
            upload_time: None,
            is_yanked: true,
            metadata_sha256: None,
            bytes: None,
        };
        let expected = Some(SimpleIndex { files: vec![file(), yanked] });
        let parse = |body: &str, kind: &str| SimpleIndex::parse(body.as_bytes(), kind, &base());
        assert_eq!(parse(html, "text/html"), expected);
        assert_eq!(parse(json, "application/vnd.pypi.simple.v1+json"), expected);
    }

    #[test]
    fn what_is_written_can_be_read_again_with_addresses_of_the_proxy() {
        let index = SimpleIndex { files: vec![file()] };
        let url = "https://index.example/pypi/files/x/x-1.0.tar.gz".parse().unwrap();
        let expected = Some(SimpleIndex { files: vec![SimpleFile { url, ..file() }] });
        let parse = |body: String, kind| SimpleIndex::parse(body.as_bytes(), kind, &base());
        assert_eq!(parse(index.to_html("x"), "text/html"), expected);
        assert_eq!(parse(index.to_json("x"), "application/json"), expected);
    }
}
