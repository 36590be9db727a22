//! The checks of `leaf doctor` on the clock: whether the nodes agree with this host, and whether
//! NTP keeps its clock right.

use std::time::Duration;

use leaf_node::config::Config;
use leaf_snowflake::Registry;
use tokio::process::Command;

use crate::nodes;

/// Time limit for `timedatectl`.
const PATIENCE: Duration = Duration::from_secs(3);

/// Compares this host's clock with those of the live nodes, and checks whether it is synchronized
/// by NTP.
pub(super) async fn look(
    config: &Config,
    registry: Option<&Registry>,
    found: &mut impl FnMut(String, String),
) {
    let most = config.snowflake.max_offset.duration();
    if let Some(registry) = registry {
        match nodes::clocks(config, registry).await {
            Ok((clocks, silent)) => {
                if silent > 0 {
                    crate::complain(&format_args!(
                        "{silent} of {} other nodes did not tell their clock",
                        silent + clocks.len()
                    ));
                }
                for clock in clocks.iter().filter(|clock| clock.differs_by() > most) {
                    let (node, offset) = (&clock.node, clock.offset_ms);
                    let ahead = if offset > 0 { "ahead of" } else { "behind" };
                    let by = offset.unsigned_abs();
                    found(
                        "this host".into(),
                        format!(
                            "its clock is {by} ms {ahead} that of the node {node}, more than snowflake.max_offset \
                             ({most:?}): a node that claims a worker id is refused where most others disagree with it; \
                             compare both with a third, and set the wrong one"
                        ),
                    );
                }
            }
            Err(error) => found("other nodes".into(), format!("{error:#}")),
        }
    }
    if is_kept().await == Some(false) {
        let text = "the kernel does not take its clock for synchronized (`timedatectl`): no NTP runs, or chrony without `rtcsync`; \
                    snowflake ids may go by a clock that drifts";
        found("this host".into(), text.into());
    }
}

/// Whether the kernel considers its clock synchronized, as `timedatectl` of systemd reports; `None`
/// without such a report.
async fn is_kept() -> Option<bool> {
    let mut timedatectl = Command::new("timedatectl");
    let asked = timedatectl
        .args(["show", "--property=NTPSynchronized", "--value"])
        .kill_on_drop(true)
        .output();
    let told = tokio::time::timeout(PATIENCE, asked).await.ok()?.ok()?;
    match told.stdout.trim_ascii() {
        b"yes" => Some(true),
        b"no" => Some(false),
        _ => None,
    }
}
