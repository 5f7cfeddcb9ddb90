package redisstore

// ScriptTexts maps the name of each script to the text that a server gets. Tests and benchmarks
// use the texts without a Store.
var ScriptTexts = map[string]string{
	"acquire": acquireScript.Text, "renew": renewScript.Text, "confirm": confirmScript.Text, "release": releaseScript.Text,
	"acquire_each": acquiresTogether.Script.Text(), "release_each": releasesTogether.Script.Text(),
	"acquire_all": acquireAllScript.Text,
	"break":       breakScript.Text, "inspect": inspectScript.Text, "raise_fence": raiseFenceScript.Text,

	"rw_acquire": rwAcquireScript.Text, "rw_renew": rwRenewScript.Text, "rw_release": rwReleaseScript.Text,
	"rw_break": rwBreakScript.Text, "rw_inspect": rwInspectScript.Text, "rw_downgrade": rwDowngradeScript.Text,
	"rw_part": rwPartScript.Text,

	"sem_acquire": semAcquireScript.Text, "sem_renew": semRenewScript.Text, "sem_release": semReleaseScript.Text,
	"sem_break": semBreakScript.Text, "sem_inspect": semInspectScript.Text, "sem_part": semPartScript.Text, "sem_use": semUseScript.Text,
}
