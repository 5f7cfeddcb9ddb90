package idempotency

// Tests use what only a Keeper knows.
var (
	NewName     = newName
	Fingerprint = fingerprint
	Encode      = encode
	Decode      = decode
)

// Len returns the number of Records of a Store of NewMemory, including expired Records that were not
// deleted yet.
func Len(s Store) int {
	m := s.(*memory)
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.records)
}

// SwapText returns the text of the script.
func SwapText() string { return swapText }
