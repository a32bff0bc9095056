// SPDX-License-Identifier: Apache-2.0

package proctest

import (
	"bytes"
	"sync"
)

// Output collects the output of a program while a test reads it. The zero value is ready to use.
type Output struct {
	mu  sync.Mutex // guards buf
	buf bytes.Buffer
}

// Write implements [io.Writer].
func (o *Output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(b)
}

// String returns all output so far.
func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// From returns the output from byte at on.
func (o *Output) From(at int) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return string(o.buf.Bytes()[at:])
}

// tail returns the end of the output, where a failure is reported.
func (o *Output) tail() string {
	const most = 16 << 10
	text := o.String()
	if len(text) > most {
		return "…" + text[len(text)-most:]
	}
	return text
}
