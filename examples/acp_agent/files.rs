//! Tools for the files of a project. Paths that lead out of the project are refused.

use std::path::{Component, Path, PathBuf};

use omni_agent::{
    schemars,
    tool::{Tool, ToolContext, ToolError, ToolSet, tool_fn},
};
use serde::Deserialize;
use tokio::fs;

#[derive(Deserialize, schemars::JsonSchema)]
struct Place {
    /// A path relative to the project's folder.
    path: PathBuf,
}

#[derive(Deserialize, schemars::JsonSchema)]
struct NewFile {
    /// A path relative to the project's folder.
    path: PathBuf,
    /// The whole content of the file.
    content: String,
}

/// Returns the tools for the files below `folder`.
pub fn tools(folder: &Path) -> Result<ToolSet, omni_agent::Error> {
    let folder = folder.to_owned();
    let (listed, read) = (folder.clone(), folder.clone());
    let list = tool_fn(
        "list_files",
        "Lists the files in a folder of the project.",
        move |place: Place, _: ToolContext| {
            let folder = inside(&listed, &place.path);
            async move {
                let mut entries = fs::read_dir(folder?).await.map_err(|error| failed(&error))?;
                let mut names = Vec::new();
                while let Some(entry) = entries.next_entry().await.map_err(|error| failed(&error))? {
                    names.push(entry.file_name().to_string_lossy().into_owned());
                }
                names.sort();
                Ok(names.join("\n"))
            }
        },
    );
    let read = tool_fn("read_file", "Reads a file of the project.", move |place: Place, _: ToolContext| {
        let file = inside(&read, &place.path);
        async move { fs::read_to_string(file?).await.map_err(|error| failed(&error)) }
    });
    let write =
        tool_fn("write_file", "Writes a file of the project.", move |new: NewFile, _: ToolContext| {
            let file = inside(&folder, &new.path);
            async move {
                fs::write(file?, &new.content).await.map_err(|error| failed(&error))?;
                Ok(format!("{} bytes written", new.content.len()))
            }
        });
    Ok(ToolSet::new().with(list)?.with(read)?.with(write.needs_approval())?)
}

fn inside(folder: &Path, path: &Path) -> Result<PathBuf, ToolError> {
    let stays = path.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    stays.then(|| folder.join(path)).ok_or_else(|| ToolError::new("the path leads out of the project"))
}

fn failed(error: &std::io::Error) -> ToolError {
    ToolError::new(error.to_string())
}
