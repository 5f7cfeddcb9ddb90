package redistest

import (
	"os"
	"strings"
)

// tailLines is how many lines of the log contain the reason of an end or a failed start.
const tailLines = 20

// LogTail returns the end of the server's log since its last start.
func (s *Server) LogTail() string {
	log, err := os.ReadFile(s.log)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(log)), "\n")
	return strings.Join(lines[max(0, len(lines)-tailLines):], "\n")
}
