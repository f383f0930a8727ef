//! Selects the model for an example.

use std::{env, error::Error, sync::Arc, time::Duration};

use omni_agent::provider::{Effort, Model, Options, Provider, Registry, http::Endpoint};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use super::demo::Demo;

/// The services whose key is looked up in the environment, each with a current model. `--model` selects any other
/// model.
const SERVICES: [(&str, &str); 2] =
    [("ANTHROPIC_API_KEY", "anthropic:claude-sonnet-5"), ("OPENAI_API_KEY", "openai:gpt-5.2")];

/// The environment variables of the services' keys.
const KEYS: [(&str, &str); 10] = [
    ("anthropic", "ANTHROPIC_API_KEY"),
    ("openai", "OPENAI_API_KEY"),
    ("openai_responses", "OPENAI_API_KEY"),
    ("google", "GEMINI_API_KEY"),
    ("ollama-cloud", "OLLAMA_API_KEY"),
    ("openrouter", "OPENROUTER_API_KEY"),
    ("groq", "GROQ_API_KEY"),
    ("moonshot", "MOONSHOT_API_KEY"),
    ("zai", "ZAI_API_KEY"),
    ("alibaba", "DASHSCOPE_API_KEY"),
];

/// Local servers and their default ports.
const SERVERS: [(&str, u16); 3] = [("ollama", 11434), ("llama.cpp", 8080), ("lmstudio", 1234)];

const USAGE: &str = "  --model PROVIDER:ID   the model, for instance anthropic:claude-sonnet-5 or demo:parrot
  --base-url URL        the address of PROVIDER if it is not known: any OpenAI-compatible server, with its
                        key in PROVIDER_API_KEY if it needs one
  anything else         the prompt, instead of the lines of a piped standard input

Without --model: a service whose key is in the environment (ANTHROPIC_API_KEY, OPENAI_API_KEY), then a local
server on its default port (Ollama, llama.cpp, LM Studio), then an offline demo model, which is not an LLM.";

/// A selected model, and the other values from the command line.
pub struct Picked {
    /// The model.
    pub model: Model,
    /// Options that suit the model.
    pub options: Options,
    /// Whether the command line names the model.
    pub is_named: bool,
    /// The words of the command line that are not options.
    pub words: Vec<String>,
    values: Vec<(&'static str, String)>,
}

impl Picked {
    /// Returns the value that the command line gives for a flag of the example.
    pub fn value(&self, flag: &Flag) -> Option<&str> {
        self.values(flag).last()
    }

    /// Returns all values that the command line gives for a flag, in order.
    pub fn values(&self, flag: &Flag) -> impl Iterator<Item = &str> {
        self.values.iter().filter(|(name, _)| *name == flag.name).map(|(_, value)| value.as_str())
    }
}

/// A flag of an example.
pub struct Flag {
    /// The flag as it is typed.
    pub name: &'static str,
    /// One word that describes the value after the flag. Empty if the flag has no value.
    pub value: &'static str,
    /// The flag's line in the help.
    pub help: &'static str,
}

/// The error for an invalid command line.
#[derive(Debug)]
struct Usage(String);

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl Error for Usage {}

/// Selects a model, and shows which model was selected and why. `about` describes the example in `--help`.
pub async fn pick_model(about: &str) -> Result<Picked, Box<dyn Error>> {
    pick_model_with(about, &[]).await
}

/// Like [`pick_model`], for an example with flags.
pub async fn pick_model_with(about: &str, flags: &'static [Flag]) -> Result<Picked, Box<dyn Error>> {
    super::quiet_on_broken_pipe();
    let (mut name, mut base_url, mut words, mut values) = (None, None, Vec::new(), Vec::new());
    let usage = || {
        let own = flags.iter().map(|Flag { name, value, help }| {
            let flag = format!("{name} {value}");
            format!("  {flag:<21} {help}\n")
        });
        format!("Options:\n{}{USAGE}", own.collect::<String>())
    };
    let mut arguments = env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value =
            || arguments.next().ok_or_else(|| Usage(format!("{argument} needs a value\n\n{}", usage())));
        match argument.as_str() {
            "--model" => name = Some(value()?),
            "--base-url" => base_url = Some(value()?),
            "--help" | "-h" => {
                println!("{about}\n\n{}", usage());
                std::process::exit(0);
            }
            flag if flag.starts_with('-') => match flags.iter().find(|own| own.name == flag) {
                Some(own) if own.value.is_empty() => values.push((own.name, String::new())),
                Some(own) => values.push((own.name, value()?)),
                None => return Err(Usage(format!("{flag} is not an option\n\n{}", usage())).into()),
            },
            _ => words.push(argument),
        }
    }
    let is_named = name.is_some();
    let (model, options, why) = match (name, base_url) {
        (Some(name), Some(url)) => {
            (model_at(&name, &url)?, Options::default(), "chosen on the command line".to_owned())
        }
        (Some(name), None) => (model_named(&name)?, thoughtful(), "chosen on the command line".to_owned()),
        (None, Some(_)) => {
            return Err(Usage("--base-url needs a --model PROVIDER:ID to go with it".to_owned()).into());
        }
        (None, None) => find().await?,
    };
    eprintln!("{}", super::dim(&format!("[model {model}: {why}; --help shows how to choose another]")));
    Ok(Picked { model, options, is_named, words, values })
}

/// Returns the models that need no address, which are the models of the services and the demo model.
pub fn models() -> Registry {
    Registry::default().with(Demo::default())
}

/// Returns the model with this name, if it is one of the models that need no address.
pub fn model_named(name: &str) -> Result<Model, Box<dyn Error>> {
    models().model(name).map_err(|error| {
        Usage(format!("{error}\nA server of your own needs its address: --model NAME:MODEL --base-url URL"))
            .into()
    })
}

/// Returns the environment variable of a model's key if the model needs a key and the variable is not set.
pub fn missing_key(model: &Model) -> Option<&'static str> {
    let (provider, _) = model.name().split_once(':')?;
    let (_, variable) = KEYS.into_iter().find(|(name, _)| *name == provider)?;
    env::var(variable).map_or(true, |key| key.trim().is_empty()).then_some(variable)
}

/// Returns a model at an address. If the provider is known, the model uses the provider's wire format.
fn model_at(name: &str, url: &str) -> Result<Model, Box<dyn Error>> {
    let Some((provider, id)) =
        name.split_once(':').filter(|(provider, id)| !provider.is_empty() && !id.is_empty())
    else {
        return Err(Usage(format!("{name:?} is not the name of a model; write PROVIDER:ID")).into());
    };
    let known = Endpoint::all().into_iter().find(|endpoint| endpoint.name() == provider);
    let endpoint = match known {
        Some(endpoint) => endpoint.with_base_url(url),
        None => Endpoint::openai_compatible(provider, url)
            .with_key_variable(format!("{}_API_KEY", provider.to_ascii_uppercase().replace(['-', '.'], "_"))),
    };
    Ok(Model::new(Arc::new(endpoint.with_optional_key()), id))
}

async fn find() -> Result<(Model, Options, String), Box<dyn Error>> {
    for (variable, name) in SERVICES {
        if env::var(variable).is_ok_and(|key| !key.trim().is_empty()) {
            return Ok((model_named(name)?, thoughtful(), format!("{variable} is set")));
        }
    }
    for (provider, port) in SERVERS {
        let model = timeout(Duration::from_millis(500), first_model(port)).await;
        if let Ok(Some(id)) = model {
            let model = model_at(&format!("{provider}:{id}"), &format!("http://127.0.0.1:{port}"))?;
            return Ok((model, Options::default(), format!("a server answers on port {port}")));
        }
    }
    let why = "there is no key in the environment and no local server. It is no LLM".to_owned();
    Ok((Model::new(Arc::new(Demo::default()), "parrot"), thoughtful(), why))
}

/// Returns options that enable thinking, so that the example can show it. Local models do not get these options,
/// because several servers reject them for models without thinking.
fn thoughtful() -> Options {
    Options::default().with_thinking(Effort::Low)
}

/// Returns the first model of a local server. The request is written by hand, because a single request does not need an
/// HTTP client.
async fn first_model(port: u16) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.ok()?;
    let request =
        format!("GET /v1/models HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\nAccept: application/json\r\n\r\n");
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut answer = Vec::new();
    stream.take(1 << 20).read_to_end(&mut answer).await.ok()?;
    let answer = String::from_utf8(answer).ok()?;
    let (_, body) = answer.split_once("\r\n\r\n")?;
    let models: Value = serde_json::from_str(body).ok()?;
    let mut ids = models["data"].as_array()?.iter().filter_map(|model| model["id"].as_str());
    ids.find(|id| !id.contains("embed")).map(str::to_owned)
}
