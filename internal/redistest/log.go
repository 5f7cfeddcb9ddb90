package redistest

import (
	"os"
	"strings"
)

// tailLines is enough for the reason why a server ended, or refused to start.
const tailLines = 20

// LogTail is the end of what the server has logged since its last start.
func (s *Server) LogTail() string {
	log, err := os.ReadFile(s.log)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(log)), "\n")
	return strings.Join(lines[max(0, len(lines)-tailLines):], "\n")
}
