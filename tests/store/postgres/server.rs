//! A PostgreSQL server for tests. `DATABASE_URL` can name an existing server. Otherwise, a server is started from the
//! installed binaries. Its data is in a temporary folder, and it can be reached only through a Unix socket.

use std::{
    env, fs,
    io::{BufRead, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::{Mutex, OnceLock},
};

use omni_agent::store::{ConversationId, PostgresStore, postgres::PostgresStoreBuilder};
use tokio_postgres::NoTls;

use super::skip::skip;

/// Returns the URL of a server that all tests share. If there is no server, prints the reason and returns `None`.
pub(crate) fn url() -> Option<&'static str> {
    static URL: OnceLock<Option<String>> = OnceLock::new();
    // The server is never dropped. It ends together with this process.
    static SERVER: OnceLock<Server> = OnceLock::new();
    let url = URL.get_or_init(|| {
        if let Ok(url) = env::var("DATABASE_URL") {
            return Some(url);
        }
        let server = Server::start(FORGETFUL)?;
        Some(SERVER.get_or_init(|| server).url())
    });
    url.as_deref()
}

/// Returns the builder of a store whose schema no other test uses.
pub(crate) fn fresh(url: &str) -> PostgresStoreBuilder {
    let schema = ConversationId::generate();
    PostgresStore::builder(url).schema(format!("Test \"{schema}\"")).connections(4)
}

/// Connects to the database as another program would.
pub(crate) async fn raw(url: &str) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// A server for a single test. The test can kill and restart it.
pub(crate) struct Server {
    folder: PathBuf,
    shell: Child,
    words: Mutex<(ChildStdin, BufReader<ChildStdout>)>,
}

/// Settings for a server whose data may be lost in a crash. The server does not sync.
pub(crate) const FORGETFUL: &str = "-c fsync=off";

/// Starts and stops the server on command. At the end of its input, the script stops the server for the last time. The
/// input ends when this process has ended for any reason. PostgreSQL refuses to run as root, so the script may have to
/// run as another user.
const SCRIPT: &str = r#"
folder=$1 binaries=$2 settings=$3
"$binaries/initdb" -D "$folder/data" -U postgres -A trust -E UTF8 --locale=C -N >"$folder/log" 2>&1 || exit 1
start() {
    "$binaries/pg_ctl" start -w -D "$folder/data" -l "$folder/log" -o "$options" >/dev/null 2>&1 </dev/null
}
options="-k $folder -c listen_addresses= -c max_connections=50 -c track_activity_query_size=16384 $settings"
start && echo ready || exit 1
while read -r word; do
    case $word in
        start) start; echo "$?" ;;
        *) "$binaries/pg_ctl" stop -D "$folder/data" -m "$word" >/dev/null 2>&1; echo "$?" ;;
    esac
done
"$binaries/pg_ctl" stop -D "$folder/data" -m immediate >/dev/null 2>&1
cd / && rm -rf "$folder"
"#;

impl Server {
    /// Starts a server with these settings, which are passed to `pg_ctl --options`. If PostgreSQL is not installed,
    /// prints the reason and returns `None`.
    pub(crate) fn start(settings: &str) -> Option<Self> {
        let Some(binaries) = binaries() else {
            skip("DATABASE_URL is not set, and PostgreSQL is not installed (there is no initdb in PATH)");
            return None;
        };
        // The path of the folder must be short, because the path of a socket is limited.
        let folder = env::temp_dir().join(format!("pg-{}", &ConversationId::generate().as_str()[..12]));
        fs::create_dir(&folder).unwrap();
        let is_root = Command::new("id").arg("-u").output().is_ok_and(|id| id.stdout == b"0\n");
        let mut shell = if is_root {
            assert!(Command::new("chown").arg("postgres").arg(&folder).status().unwrap().success());
            let mut shell = Command::new("runuser");
            shell.args(["-u", "postgres", "--", "sh"]);
            shell
        } else {
            Command::new("sh")
        };
        shell.args(["-c", SCRIPT, "sh"]).arg(&folder).arg(&binaries).arg(settings).current_dir(&folder);
        let mut shell = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut words = (shell.stdin.take().unwrap(), BufReader::new(shell.stdout.take().unwrap()));
        let mut ready = String::new();
        words.1.read_line(&mut ready).unwrap();
        let log = || fs::read_to_string(folder.join("log")).unwrap_or_default();
        assert_eq!(ready, "ready\n", "the server did not start: {}", log());
        Some(Self { folder, shell, words: Mutex::new(words) })
    }

    pub(crate) fn url(&self) -> String {
        let host = self.folder.display().to_string().replace('/', "%2F");
        format!("postgres://postgres@{host}/postgres")
    }

    /// Returns the path of the server's socket.
    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.join(".s.PGSQL.5432")
    }

    /// Stops the server. The mode `fast` ends all sessions cleanly. The mode `immediate` leaves the data as it would be
    /// after a crash.
    pub(crate) fn stop(&self, mode: &str) {
        assert_eq!(self.tell(mode), "0\n");
    }

    pub(crate) fn restart(&self) {
        assert_eq!(self.tell("start"), "0\n");
    }

    fn tell(&self, word: &str) -> String {
        let mut words = self.words.lock().unwrap();
        writeln!(words.0, "{word}").unwrap();
        let mut answer = String::new();
        words.1.read_line(&mut answer).unwrap();
        answer
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The result does not matter, because the shell is killed next.
        let _ = self.tell("immediate");
        let _ = self.shell.kill();
        let _ = self.shell.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Returns the folder that contains `initdb` and `pg_ctl`. It is found in `PATH` or in the folders that Debian uses.
fn binaries() -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let in_path = env::split_paths(&path).collect::<Vec<_>>();
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut debian: Vec<_> = versions.map(|entry| entry.path().join("bin")).collect();
    debian.sort();
    debian.reverse();
    in_path.into_iter().chain(debian).find(|folder| has(folder, "initdb") && has(folder, "pg_ctl"))
}

fn has(folder: &Path, program: &str) -> bool {
    folder.join(program).is_file()
}
