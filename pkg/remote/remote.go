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

// Error returns an error with the text that [Text] makes of err's. It is err itself if that is short, and nil for nil. Otherwise
// [errors.Is] and [errors.As] find err in it: what sent the text must have bounded its memory.
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
