package idempotency

// Tests use what only a Keeper knows.
var (
	NewName     = newName
	Fingerprint = fingerprint
	Encode      = encode
	Decode      = decode
)

// Len returns the number of Records, including expired Records that were not deleted yet.
func (m *Memory) Len() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.records)
}

// SwapText returns the text of the script.
func SwapText() string { return swapText }
