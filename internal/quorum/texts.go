package quorum

// ScriptTexts are the scripts as nodes are sent them, by name. Tests and benchmarks send them
// without a Store.
var ScriptTexts = map[string]string{
	"quorum_vote": voteScript.Text, "quorum_confirm": confirmScript.Text, "quorum_renew": renewScript.Text,
	"quorum_release": releaseScript.Text, "quorum_downgrade": downgradeScript.Text,
	"quorum_look": lookScript.Text, "quorum_mark": markScript.Text,
}
