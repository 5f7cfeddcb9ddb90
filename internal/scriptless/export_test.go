package scriptless

// WithoutDeletions makes s release by WATCH, as on a server without a command for it. It returns s.
func WithoutDeletions(s *Store) *Store {
	s.deletion.Store(int32(len(deletions)))
	return s
}
