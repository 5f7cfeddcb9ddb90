package locker

// What the tests of package locker_test look at from inside.
var (
	Refused    = refusal
	SlotOf     = func(key string) uint16 { return slot(tagOf(key)) }
	CounterOf  = counterOf
	Tombstone  = tombstoneOf
	DoneMark   = doneOf
	SlotCount  = slotCount
	ScriptText = map[string]string{
		"acquire": acquireLua, "renew": renewLua, "release": releaseLua,
		"break": breakLua, "inspect": inspectLua, "raise_fence": raiseFenceLua,
	}
)

// SingleStore is the Store behind NewSingle.
func SingleStore(c Client) Store { return newSingle(c) }

// ScriptSHA is the name under which the server knows a script.
func ScriptSHA(name string) string { return newScript(ScriptText[name]).sha.(string) }

// TogetherStore is that Store when all of its acquires and releases are pipelined.
func TogetherStore(c Client) (Store, error) {
	p, err := newPipelined(c)
	if err != nil {
		return nil, err
	}
	return single{client: c, steps: p.together}, nil
}
