package chaos

import (
	"bytes"
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"sync"
)

// patch is a change of scripts: their texts have another part instead of old.
type patch struct {
	old, new []byte

	mu      sync.Mutex
	digests map[string]string // of each script that has the part: the SHA-1 of its text, and of its changed text
}

// Patch changes the scripts that contain the text old: the server gets new in its place. So a test
// can show what a rule of a script is for, although the product cannot leave the rule out. Call
// Patch before clients connect. The server must not know these scripts yet.
func (p *Proxy) Patch(old, new string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.patches = append(p.patches, &patch{old: []byte(old), new: []byte(new), digests: map[string]string{}})
}

func (p *Proxy) rewrite(request message) message {
	p.mu.Lock()
	patches := p.patches
	p.mu.Unlock()
	for _, c := range patches {
		request = c.apply(request)
	}
	return request
}

// apply changes the text of a script in an EVAL, or its SHA-1 in an EVALSHA.
func (c *patch) apply(request message) message {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !bytes.Contains(request, c.old) {
		for digest, changed := range c.digests {
			request = bytes.Replace(request, []byte(digest), []byte(changed), 1)
		}
		return request
	}
	words := request.words()
	for i, word := range words {
		if bytes.Contains(word, c.old) {
			words[i] = bytes.ReplaceAll(word, c.old, c.new)
			c.digests[digest(word)] = digest(words[i])
		}
	}
	changed := fmt.Appendf(nil, "*%d\r\n", len(words))
	for _, word := range words {
		changed = fmt.Appendf(changed, "$%d\r\n%s\r\n", len(word), word)
	}
	return changed
}

func digest(text []byte) string {
	sum := sha1.Sum(text)
	return hex.EncodeToString(sum[:])
}

// words returns the words of a request, which is an array of bulk strings.
func (m message) words() (all [][]byte) {
	_, rest, _ := bytes.Cut(m, []byte("\r\n"))
	for len(rest) > 0 {
		header, after, _ := bytes.Cut(rest, []byte("\r\n"))
		n, err := length(header)
		if err != nil || n < 0 || n > len(after) {
			return all
		}
		all = append(all, after[:n])
		rest = bytes.TrimPrefix(after[n:], []byte("\r\n"))
	}
	return all
}
