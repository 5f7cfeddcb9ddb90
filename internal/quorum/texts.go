package quorum

// ScriptTexts maps the name of each script to the text that a node gets. Tests and benchmarks use
// the texts without a Store.
var ScriptTexts = map[string]string{
	"quorum_vote": voteScript.Text, "quorum_confirm": confirmScript.Text, "quorum_renew": renewScript.Text,
	"quorum_release": releaseScript.Text,
	"quorum_look":    lookScript.Text, "quorum_mark": markScript.Text,
}
