// SPDX-License-Identifier: Apache-2.0

// Package remote bounds texts that other programs send and this one shows: in its log, in errors, and on its pages. They are cut
// where they enter.
package remote

import (
	"fmt"
	"unicode/utf8"
)

// MaxText bounds a text, in bytes.
const MaxText = 1 << 10

// Text returns a text of at most MaxText bytes: a longer one loses its end, between two characters, and gets the number of bytes
// that it had. It does not keep the longer one in memory.
func Text(text string) string {
	if len(text) <= MaxText {
		return text
	}
	end := fmt.Sprintf("… (cut, %d bytes)", len(text))
	most := MaxText - len(end)
	for back := range utf8.UTFMax {
		if utf8.RuneStart(text[most-back]) {
			most -= back
			break
		}
	}
	return text[:most] + end
}

// Error returns err with its text cut by [Text]. It returns err itself if the text is short, and nil for nil. Otherwise it wraps
// err, which keeps the long text in memory: the code that received the text must have bounded it.
func Error(err error) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	if len(text) <= MaxText {
		return err
	}
	return &cutError{Text(text), err}
}

// A cutError is an error with a shorter text.
type cutError struct {
	text string
	err  error
}

// Error returns the shorter text.
func (e *cutError) Error() string { return e.text }

// Unwrap returns the error with the longer text.
func (e *cutError) Unwrap() error { return e.err }
