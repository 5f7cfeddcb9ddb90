package redistest

import (
	"os"
	"strings"
)

// tailLines is how many lines at the end of the log show why a server has ended or has not started.
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
