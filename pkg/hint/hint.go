// SPDX-License-Identifier: Apache-2.0

// Package hint gives an error a line about what the operator can do.
package hint

import "errors"

// An Error is an error with a hint.
type Error struct {
	Err  error
	Hint string // a sentence without its final dot; empty: no hint
}

// Error returns the text of Err, without the hint.
func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// Of returns the hint of the first [Error] that err is or wraps, "" if there is none.
func Of(err error) string {
	if hinted, ok := errors.AsType[*Error](err); ok {
		return hinted.Hint
	}
	return ""
}
