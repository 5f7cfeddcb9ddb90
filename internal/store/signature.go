package store

// traceparentBytes is the length of version 00 of a traceparent.
const traceparentBytes = len("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")

// traceMark stands before and after a traceparent at the beginning of a lease's metadata. The
// scripts that release a lease look for this mark too.
const traceMark = '\x01'

// Sign adds a traceparent of W3C's Trace Context, version 00, to the beginning of a lease's
// metadata. The Engine calls Sign so that a waiter's span can link to the holder's span. A Store
// treats all metadata as plain text.
func Sign(traceparent, metadata string) string {
	if len(traceparent) != traceparentBytes {
		return metadata
	}
	return string(traceMark) + traceparent + string(traceMark) + metadata
}

// Signature separates a lease's metadata from the traceparent that Sign has added. The result
// traceparent is "" if Sign has added nothing.
func Signature(signed string) (traceparent, metadata string) {
	if end := traceparentBytes + 1; len(signed) > end && signed[0] == traceMark && signed[end] == traceMark {
		return signed[1:end], signed[end+1:]
	}
	return "", signed
}
