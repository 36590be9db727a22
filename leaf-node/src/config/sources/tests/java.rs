//! A `leaf.properties` of a Java Leaf.

use super::*;

/// The properties of a Java Leaf, like those in its repository but with other values.
const JAVA: &str = "leaf.name=com.sankuai.leaf.opensource.test\n\
    leaf.segment.enable=true\n\
    leaf.jdbc.url=jdbc:mysql://db:3306/leaf?useUnicode=true&characterEncoding=utf8&useSSL=false\n\
    leaf.jdbc.username=le@f\n\
    leaf.jdbc.password=s:cr/t=x\n\n\
    leaf.snowflake.enable=true\n\
    #leaf.snowflake.mode=\n\
    leaf.snowflake.zk.address=zk1:2181,zk2:2181\n\
    leaf.snowflake.port=8686\n";

fn java(text: &str) -> Result<Loaded, ConfigError> {
    let known = keys::Known::new();
    let file = FileSource::properties(text.as_bytes(), Path::new("leaf.properties"))?;
    merge(&known, vec![file], Vec::new(), &[], false)
}

#[test]
fn a_java_leafs_file_means_what_it_meant_there() {
    let loaded = java(JAVA).unwrap();
    let config = &loaded.config;
    assert_eq!(config.name, "com.sankuai.leaf.opensource.test");
    assert_eq!(config.http.listen.to_string(), "0.0.0.0:8080");
    assert_eq!(config.advertise_port, Some(8686));
    assert_eq!(config.segment.store.to_string(), "mysql://le%40f:***@db:3306/leaf");
    let url = &loaded.written.0["segment.store"];
    assert_eq!(url, "mysql://le%40f:s%3Acr%2Ft%3Dx@db:3306/leaf?ssl-mode=DISABLED");
    let password = java(&format!("{JAVA}leaf.jdbc.password=a%41b\\u0020\n")).unwrap();
    let url = password.written.0["segment.store"].as_str().unwrap().to_owned();
    assert!(url.contains(":a%2541b%20@"), "{url}");
    assert_eq!(config.registry().to_string(), "zk-normal://zk1:2181,zk2:2181");
    assert_eq!(loaded.warnings, Vec::<String>::new());
    assert_eq!(loaded.origins["segment.store"], "leaf.properties");
    assert_eq!(loaded.origins["segment.wait"], "default");

    let fork = |mode: &str| java(&format!("{JAVA}leaf.snowflake.mode={mode}\n")).unwrap().config;
    let recycle = fork("zk_recycle").registry().to_string();
    assert_eq!(recycle, "zk-recycle://zk1:2181,zk2:2181");
    assert_eq!(fork("mysql").registry().to_string(), "mysql://le%40f:***@db:3306/leaf");
    let login = java(&format!("{JAVA}leaf.snowflake.zk.address=u:a%41:b@zk:2181\n")).unwrap();
    assert_eq!(login.document.0["snowflake"]["registry"], "zk-normal://u:a%2541%3Ab@zk:2181");
    let local = fork(
        "local\nleaf.snowflake.local.workIdMap={\"10.1.46.33:8080\":1, \"10.1.46.33:8081\":2}",
    );
    assert_eq!(local.snowflake.worker_ids.unwrap()["10.1.46.33:8081"], 2);
}

#[test]
fn what_a_java_leafs_file_has_wrong_is_named() {
    let without = |key: &str| {
        let lines = JAVA.lines().filter(|line| !line.starts_with(key));
        java(&lines.collect::<Vec<_>>().join("\n")).err().unwrap().to_string()
    };
    assert_eq!(without("leaf.jdbc.url"), "leaf.properties: leaf.jdbc.url is missing");
    assert_eq!(
        without("leaf.snowflake.zk.address"),
        "leaf.properties: leaf.snowflake.zk.address is missing"
    );
    assert!(without("leaf.snowflake.port").ends_with("leaf.snowflake.port is missing"));
    let local = java(&format!("{JAVA}leaf.snowflake.mode=local\n")).err().unwrap().to_string();
    assert!(local.ends_with("leaf.snowflake.local.workIdMap is missing"), "{local}");
    for (line, expected) in [
        ("leaf.name=x ", "leaf.name: there is a blank at the end"),
        ("leaf.name=", "name: give 1 to 64 letters"),
        ("leaf.snowflake.zk.address=zk:2181/canary ", "zk.address: there is a blank at the end"),
        ("leaf.snowflake.enable=true ", "enable: there is a blank at the end"),
        ("leaf.jdbc.url=jdbc:oracle:canary", "leaf.jdbc.url: write jdbc:mysql://"),
        ("leaf.jdbc.url=jdbc:mysql://a:1,b:2/canary", "leaf.jdbc.url: give one host"),
        ("leaf.jdbc.url=jdbc:mysql://a:1/d?sslMode=canary", "segment.store: ssl-mode: give"),
        ("leaf.snowflake.port=canary", "leaf.snowflake.port: give a port"),
        ("leaf.snowflake.mode=canary", "leaf.snowflake.mode: give zk_normal, zk_recycle"),
        (
            "leaf.snowflake.mode=local\nleaf.snowflake.local.workIdMap=canary",
            "leaf.snowflake.local.workIdMap: write it like",
        ),
        ("leaf.name=a/b", "name: give 1 to 64 letters"),
        ("leaf.name=\\u12", "not a properties file"),
    ] {
        let error = java(&format!("{JAVA}{line}\n")).err().unwrap().to_string();
        assert!(error.contains(expected), "{line}: {error}");
        assert!(!error.contains("canary") && !error.contains('\n'), "{error}");
    }
    let broken = "leaf.jdbc.url=jdbc:mysql://a/d?user=u&password=a&canary\ncanarypart\n";
    let warnings = java(&format!("{JAVA}{broken}")).unwrap().warnings.join(" ");
    assert!(warnings.contains("1 that are none of Leaf's"), "{warnings}");
    assert!(!warnings.contains("canary"), "halves of passwords are no names: {warnings}");
    let strange =
        "leaf.canary=1\nleaf.jdbc.url=jdbc:mysql://a/d?interactiveClient=true&useSSL=true\n";
    let loaded = java(&format!("{JAVA}{strange}")).unwrap();
    assert_eq!(loaded.warnings.len(), 2, "{:?}", loaded.warnings);
    assert!(loaded.warnings.iter().any(|line| line.contains("leaf.canary")));
    assert!(loaded.warnings.iter().any(|line| line.ends_with("ignored: interactiveClient")));
}

/// The file is read as a Java Leaf was seen to read it: with `new Properties()`,
/// `Boolean.parseBoolean`, and a path with "null" in it.
#[test]
fn what_java_makes_of_unusual_files_is_what_we_make_of_them() {
    let without = JAVA.replace("leaf.name=com.sankuai.leaf.opensource.test", "");
    let loaded = java(&without).unwrap();
    assert_eq!(loaded.config.name, "null");
    assert!(loaded.warnings.join(" ").contains("/snowflake/null"), "{:?}", loaded.warnings);
    assert!(java(JAVA).unwrap().warnings.is_empty());

    let loaded = java(&format!("{JAVA}leaf.segment.enable=yes\n")).unwrap();
    assert!(!loaded.config.segment.enabled);
    assert!(loaded.warnings.join(" ").contains("neither true nor false"), "{:?}", loaded.warnings);
    assert!(java(&format!("{JAVA}leaf.segment.enable=TRUE\n")).unwrap().config.segment.enabled);
    assert_eq!(java(JAVA).unwrap().config.advertise_guess, crate::config::Guess::Java);
}

#[test]
fn the_words_of_connector_j_about_tls_keep_their_meaning() {
    for (words, mode) in [
        ("useSSL=false", Some("DISABLED")),
        ("useSSL=false&verifyServerCertificate=true", Some("DISABLED")),
        ("useSSL=true", Some("PREFERRED")),
        ("useSSL=true&requireSSL=true", Some("REQUIRED")),
        ("requireSSL=true", Some("REQUIRED")),
        ("verifyServerCertificate=true", Some("VERIFY_CA")),
        ("useSSL=true&requireSSL=true&verifyServerCertificate=true", Some("VERIFY_CA")),
        ("verifyServerCertificate=false", None),
        ("sslMode=verify_identity&useSSL=false", Some("VERIFY_IDENTITY")),
    ] {
        let url = format!("leaf.jdbc.url=jdbc:mysql://db/leaf?{words}\n");
        let written = java(&format!("{JAVA}{url}")).unwrap().written.0["segment.store"].clone();
        let query = written.as_str().unwrap().split_once('?').map(|(_, query)| query.to_owned());
        assert_eq!(query, mode.map(|mode| format!("ssl-mode={mode}")), "{words}");
    }
}

#[test]
fn what_a_java_leafs_file_leaves_out_ranks_below_leaf_toml() {
    let known = keys::Known::new();
    let toml = "[http]\nlisten = '127.0.0.1:9'\n[segment]\nenabled = false";
    let toml = FileSource::toml(toml, Path::new("leaf.toml"), &known).unwrap();
    let without = JAVA.replace("leaf.segment.enable=true", "");
    let java = FileSource::properties(without.as_bytes(), Path::new("leaf.properties")).unwrap();
    let files = vec![toml, java];
    let loaded = merge(&known, files, Vec::new(), &[], false).unwrap();
    assert_eq!(loaded.config.http.listen.port(), 9);
    assert!(!loaded.config.segment.enabled);
    assert_eq!(loaded.origins["advertise_guess"], "default of a Java Leaf");

    // What it leaves out another source may give.
    let little = || {
        let file = b"leaf.name=x\n";
        FileSource::properties(file, Path::new("leaf.properties")).unwrap()
    };
    let toml = "[segment]\nenabled = false\n[snowflake]\nregistry = 'local'\nworker_id = 3";
    let toml = FileSource::toml(toml, Path::new("leaf.toml"), &known).unwrap();
    let named = [("advertise", "10.0.0.7:8080".to_owned())];
    let loaded = merge(&known, vec![toml, little()], Vec::new(), &named, false).unwrap();
    assert_eq!(loaded.config.snowflake.worker_id, 3);
    let environment = vec![("LEAF_SNOWFLAKE__ENABLED".to_owned(), "false".to_owned())];
    let store = [("segment.store", "sqlite:x.db".to_owned())];
    merge(&known, vec![little()], environment, &store, false).unwrap();
}
