//! The identity of this node: `advertise`, or an address of one of its interfaces.
//!
//! A guessed address always gives a warning: two nodes with one identity would compete for one
//! worker id.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use ipnet::IpNet;
use leaf_registry::RegistryKind;
use leaf_snowflake::Identity;

use crate::config::{Config, ConfigError, Guess};

/// An interface's name and address.
type Interface = (String, IpAddr);

/// Returns this node's identity, and a warning for the operator if the identity was guessed.
///
/// The first rule that applies wins: `advertise`; a registry that needs no name gets the listener's
/// address; `advertise_interface`; the listener's own address, unless it is loopback or
/// unspecified; a guess, with a warning.
///
/// # Errors
/// Names the key that is missing or wrong.
pub fn find_identity(config: &Config) -> Result<(Identity, Option<String>), ConfigError> {
    let listen = config.http.listen;
    if let Some(name) = &config.advertise {
        let identity = parse(&canonical(name)?)?;
        if is_loopback(host(identity.as_str()))
            && !config.registry().hosts().iter().all(|at| is_loopback(host(at)))
        {
            return Err(ConfigError::new(format!(
                "advertise: {identity} is this host to itself alone, and the registry is shared: give an address that the \
                 other nodes reach, or leave it out"
            )));
        }
        return Ok((identity, None));
    }
    // Nobody else ever sees its name.
    let by_identity =
        config.snowflake.worker_ids.is_some() && config.registry().kind() == RegistryKind::Local;
    if config.registry().is_in_state_file() && !by_identity {
        return Ok((parse(&listen.to_string())?, None));
    }
    let port = config.advertise_port.unwrap_or(listen.port());
    if port == 0 {
        return Err(ConfigError::new(
            "http.listen has port 0, which is another one at every start: set `advertise`",
        ));
    }
    if let Some(wanted) = &config.advertise_interface {
        let address = chosen(wanted, &interfaces()?)?;
        return Ok((named(address, port)?, None));
    }
    if !listen.ip().is_unspecified() && !listen.ip().is_loopback() {
        return Ok((named(listen.ip(), port)?, None));
    }
    let (address, all) = guess(&interfaces()?, config.advertise_guess)?;
    let identity = named(address, port)?;
    let why = match config.advertise_guess {
        Guess::First => "the first of its addresses",
        Guess::Java => "the one of its addresses that a Java Leaf takes",
    };
    let warning = format!(
        "this node calls itself {identity}, after {why} ({}): set `advertise` or `advertise_interface` to be \
         sure",
        all.join(", ")
    );
    Ok((identity, Some(warning)))
}

/// Writes an address in its canonical form, so that each address is one identity. Refuses an IPv6
/// address that has no brackets.
fn canonical(name: &str) -> Result<String, ConfigError> {
    if let Ok(address) = name.parse::<SocketAddr>() {
        return Ok(address.to_string());
    }
    let bracketed = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    match bracketed.map(str::parse::<Ipv6Addr>) {
        Some(Ok(address)) => Ok(format!("[{address}]")),
        _ if name.matches(':').count() > 1 => Err(ConfigError::new(
            "advertise: write an address of IPv6 in brackets, with a port: [2001:db8::7]:8080",
        )),
        _ => Ok(name.into()),
    }
}

/// A name without its port.
fn host(name: &str) -> &str {
    match name.rsplit_once(':') {
        Some((host, _)) if !name.ends_with(']') => host,
        _ => name,
    }
}

/// Whether the name means the host itself, so that no other host can reach the node by it.
fn is_loopback(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || bare.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// The address at which other nodes reach this node over HTTP: the identity's host and the port for
/// ids.
///
/// Other nodes read this node's clock there.
pub(crate) fn address(identity: &Identity, listen: SocketAddr) -> Result<Identity, ConfigError> {
    parse(&format!("{}:{}", host(identity.as_str()), listen.port()))
}

/// The identity of an address and a port.
fn named(address: IpAddr, port: u16) -> Result<Identity, ConfigError> {
    parse(&SocketAddr::new(address, port).to_string())
}

/// An identity from a configured text.
fn parse(name: &str) -> Result<Identity, ConfigError> {
    Identity::parse(name).map_err(|error| ConfigError::new(format!("advertise: {error}")))
}

/// All addresses of all interfaces, in the order in which the system lists them.
fn interfaces() -> Result<Vec<Interface>, ConfigError> {
    let found = if_addrs::get_if_addrs().map_err(|error| {
        ConfigError::new(format!("the interfaces cannot be read ({error}): set `advertise`"))
    })?;
    Ok(found.into_iter().map(|interface| (interface.name.clone(), interface.ip())).collect())
}

/// The address of the interface named `wanted`, or the address that is in the network `wanted`.
fn chosen(wanted: &str, interfaces: &[Interface]) -> Result<IpAddr, ConfigError> {
    let network = wanted.parse::<IpNet>().ok();
    let fits = |(name, address): &&Interface| match &network {
        Some(network) => network.contains(address),
        None => name == wanted,
    };
    // Of several the IPv4 address: the Java programs know no other.
    let mut fitting: Vec<_> = interfaces.iter().filter(fits).map(|(_, address)| *address).collect();
    fitting
        .sort_by_key(|address| (address.is_loopback(), is_link_local(*address), address.is_ipv6()));
    fitting.first().copied().ok_or_else(|| {
        let all: Vec<_> =
            interfaces.iter().map(|(name, address)| format!("{name} {address}")).collect();
        ConfigError::new(format!(
            "advertise_interface: no interface is or has that; there are {}",
            all.join(", ")
        ))
    })
}

/// Guesses an address by `rule`. Returns it, and a list of all candidates for the warning.
fn guess(interfaces: &[Interface], rule: Guess) -> Result<(IpAddr, Vec<String>), ConfigError> {
    let fits = |address: &IpAddr| match rule {
        Guess::First => !address.is_loopback() && !is_link_local(*address),
        Guess::Java => address.is_ipv4() && !address.is_loopback(),
    };
    let mut found: Vec<_> = interfaces.iter().filter(|(_, address)| fits(address)).collect();
    match rule {
        Guess::First => found.sort_by_key(|(_, address)| address.is_ipv6()),
        Guess::Java => found.reverse(),
    }
    let Some((_, first)) = found.first() else {
        return Err(ConfigError::new(
            "no interface has an address but loopback, and a worker registry needs a name for this \
             node: set `advertise`, like 10.0.0.7:8080",
        ));
    };
    Ok((*first, found.iter().map(|(name, address)| format!("{name} {address}")).collect()))
}

/// Whether an address holds on its own network segment only, so that most nodes could not reach it.
fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interfaces() -> Vec<Interface> {
        let interface = |name: &str, address: &str| (name.to_owned(), address.parse().unwrap());
        vec![
            interface("lo", "127.0.0.1"),
            interface("lo", "::1"),
            interface("eth0", "fe80::1"),
            interface("eth0", "2001:db8::7"),
            interface("eth0", "10.0.0.7"),
            interface("docker0", "172.17.0.1"),
        ]
    }

    #[test]
    fn an_interface_is_chosen_by_name_or_network() {
        let chosen = |wanted| chosen(wanted, &interfaces()).map(|address| address.to_string());
        assert_eq!(chosen("eth0").unwrap(), "10.0.0.7");
        assert_eq!(chosen("172.16.0.0/12").unwrap(), "172.17.0.1");
        assert_eq!(chosen("2001:db8::/32").unwrap(), "2001:db8::7");
        assert_eq!(chosen("0.0.0.0/0").unwrap(), "10.0.0.7");
        assert_eq!(chosen("lo").unwrap(), "127.0.0.1", "asked for");
        for bad in ["eth1", "10.0.0.0/33", "10.1.0.0/16", "10.0.0.0/x"] {
            let error = chosen(bad).unwrap_err().to_string();
            assert!(error.contains("docker0 172.17.0.1"), "{bad}: {error}");
        }
    }

    /// What Java's `NetworkInterface` gave on hosts with these addresses, in the kernel's order.
    #[test]
    fn where_a_java_leaf_was_replaced_its_address_is_taken() {
        for (addresses, java) in [
            (&["10.1.0.1"][..], "10.1.0.1"),
            (&["10.1.0.1", "10.2.0.1"], "10.2.0.1"),
            (&["10.2.0.1", "10.1.0.1"], "10.1.0.1"),
            (&["10.1.0.1", "172.17.0.1"], "172.17.0.1"),
            (&["10.1.0.1", "10.1.0.9"], "10.1.0.9"),
            (&["10.1.0.1", "192.168.7.7"], "192.168.7.7"),
            (&["127.0.0.1", "10.99.0.1", "10.1.0.1"], "10.1.0.1"),
            (&["127.0.0.1", "::1", "10.1.0.1", "169.254.3.4", "fe80::1"], "169.254.3.4"),
        ] {
            let interfaces = addresses.iter().map(|it| ("eth0".to_owned(), it.parse().unwrap()));
            let (address, _) = guess(&interfaces.collect::<Vec<_>>(), Guess::Java).unwrap();
            assert_eq!(address.to_string(), java, "{addresses:?}");
        }
        assert!(guess(&interfaces()[..4], Guess::Java).is_err(), "Java knows no IPv6");
    }

    #[test]
    fn one_address_is_one_identity_and_one_that_others_reach() {
        for (name, wanted) in [
            ("[2001:DB8:0::7]:8080", "[2001:db8::7]:8080"),
            ("10.0.0.7:8080", "10.0.0.7:8080"),
            ("node-7:8080", "node-7:8080"),
            ("node-7", "node-7"),
            ("[2001:DB8::7]", "[2001:db8::7]"),
        ] {
            assert_eq!(canonical(name).unwrap(), wanted);
        }
        for bare in ["2001:db8::7:8080", "2001:db8::7"] {
            let refused = canonical(bare).unwrap_err().to_string();
            assert!(refused.contains("in brackets"), "{refused}");
        }
        let check = |advertise: &str, etcd: &str| {
            let mut config = Config { advertise: Some(advertise.into()), ..Config::default() };
            config.snowflake.registry = etcd.parse().unwrap();
            find_identity(&config).map_err(|error| error.to_string())
        };
        assert_eq!(
            (host("[::1]"), host("[::1]:80"), host("a:80"), host("a")),
            ("[::1]", "[::1]", "a", "a")
        );
        let (here, there) = ("etcd://127.0.0.1:2379,[::1]:2379", "etcd://127.0.0.1:2379,b:2379");
        for own in ["127.0.0.1:8080", "[::1]:8080", "localhost:8080"] {
            check(own, here).unwrap();
            let refused = check(own, there).unwrap_err();
            assert!(refused.contains("the registry is shared"), "{refused}");
        }
        check("10.0.0.7:8080", there).unwrap();
    }

    #[test]
    fn without_a_word_the_first_reachable_address_is_taken_and_never_none() {
        let (address, all) = guess(&interfaces(), Guess::First).unwrap();
        assert_eq!(address.to_string(), "10.0.0.7");
        assert_eq!(all.len(), 3, "{all:?}");
        let error = guess(&interfaces()[..3], Guess::First).unwrap_err().to_string();
        assert!(error.contains("set `advertise`"), "{error}");
        let (address, _) = guess(&interfaces()[..4], Guess::First).unwrap();
        let listen = "[::]:8080".parse().unwrap();
        assert_eq!(named(address, 8080).unwrap().as_str(), "[2001:db8::7]:8080");
        let identity = named(address, 2181).unwrap();
        let http = super::address(&identity, listen).unwrap();
        assert_eq!(http.as_str(), "[2001:db8::7]:8080");
    }
}
