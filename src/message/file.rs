use std::{io, path::Path};

use base64::{Engine as _, prelude::BASE64_STANDARD};

use super::Attachment;

impl Attachment {
    /// Returns an attachment with these bytes, which are encoded in base64.
    pub fn from_bytes(media_type: impl Into<String>, bytes: impl AsRef<[u8]>) -> Self {
        Self::base64(media_type, BASE64_STANDARD.encode(bytes))
    }

    /// Reads a file. The extension of the file's name determines the media type, and the attachment gets the file's
    /// name.
    ///
    /// This function blocks. In async code with large files or slow disks, read the file with `tokio::fs::read` and use
    /// [`from_bytes`](Self::from_bytes).
    ///
    /// ```
    /// use omni_agent::message::{Attachment, Content, Message};
    ///
    /// # let folder = std::env::temp_dir().join(format!("omni-agent-{}", std::process::id()));
    /// # std::fs::create_dir_all(&folder)?;
    /// # let path = folder.join("cat.png");
    /// # std::fs::write(&path, b"\x89PNG")?;
    /// let picture = Attachment::from_file(&path)?;
    /// assert_eq!((picture.media_type.as_str(), picture.name.as_deref()), ("image/png", Some("cat.png")));
    /// let question = Message::user([Content::from(picture), "What is in this picture?".into()]);
    /// # std::fs::remove_dir_all(&folder)?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`InvalidInput`](io::ErrorKind::InvalidInput) if the extension is unknown. Returns the system's error if
    /// the file can't be read. Both errors contain the path.
    pub fn from_file(path: impl AsRef<Path>) -> io::Result<Self> {
        let path = path.as_ref();
        let media_type = media_type(path).ok_or_else(|| {
            let problem =
                "no media type is known for its extension; use `Attachment::from_bytes` with a media type";
            io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{} can't be attached: {problem}", path.display()),
            )
        })?;
        let bytes = std::fs::read(path).map_err(|error| {
            io::Error::new(error.kind(), format!("{} can't be read: {error}", path.display()))
        })?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        Ok(Self::from_bytes(media_type, bytes).named(name))
    }
}

fn media_type(path: &Path) -> Option<&'static str> {
    Some(match path.extension()?.to_str()?.to_ascii_lowercase().as_str() {
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "gif" => "image/gif",
        "webp" => "image/webp",
        "heic" => "image/heic",
        "pdf" => "application/pdf",
        "txt" | "log" => "text/plain",
        "md" => "text/markdown",
        "csv" => "text/csv",
        "html" | "htm" => "text/html",
        "xml" => "text/xml",
        "json" => "application/json",
        "mp3" => "audio/mpeg",
        "wav" => "audio/wav",
        "ogg" => "audio/ogg",
        "flac" => "audio/flac",
        "m4a" => "audio/mp4",
        "mp4" => "video/mp4",
        "webm" => "video/webm",
        "mov" => "video/quicktime",
        "docx" => "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
        "xlsx" => "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
        "pptx" => "application/vnd.openxmlformats-officedocument.presentationml.presentation",
        _ => return None,
    })
}
