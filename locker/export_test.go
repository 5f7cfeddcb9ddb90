package locker

// What the tests of package locker_test look at from inside.
var (
	Refused    = refusal
	SlotOf     = func(key string) uint16 { return slot(tagOf(key)) }
	CounterOf  = counterOf
	Tombstone  = tombstoneOf
	DoneMark   = doneOf
	QueueOf    = queueOf
	EntryOf    = entryOf
	JoinsOf    = joinsOf
	EventOf    = eventOf
	SlotCount  = slotCount
	ScriptText = map[string]string{
		"acquire": acquireScript.text, "renew": renewScript.text, "confirm": confirmScript.text, "release": releaseScript.text,
		"break": breakScript.text, "inspect": inspectScript.text, "raise_fence": raiseFenceScript.text,
		"delegate": delegateScript.text, "join": joinScript.text, "leave": leaveScript.text,
	}
)

// SingleStore is the Store behind NewSingle.
func SingleStore(c Client) Store {
	s, _ := newSingleStore(c, config{}) // only WithAutoPipeline can fail
	return s
}

// Kill makes a Store of SingleStore deaf, as if its process had ended, and returns where it listened.
func Kill(s Store) (channel string) {
	b := s.(listening).inbox
	b.stop()
	return b.channel
}

// ScriptSHA is the name under which the server knows a script.
func ScriptSHA(name string) string { return newScript(ScriptText[name]).sha.(string) }

// TogetherStore is that Store when all of its acquires and releases are pipelined.
func TogetherStore(c Client) (Store, error) {
	p, err := newPipelined(c)
	if err != nil {
		return nil, err
	}
	store := single{client: c, steps: p.together, renewals: c}
	if s, ok := c.(subscriber); ok {
		return listening{store, newInbox(s)}, nil
	}
	return store, nil
}
