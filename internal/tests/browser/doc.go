// Package browser tests the live page in a real Chromium: that it says what the servers say, in
// light and dark, on wide and narrow screens, for the keyboard and for screen readers. It makes the
// screenshots of the documents, with -update.
package browser
