// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"text/template"
)

// What the text of a [Template] may make. Without bounds a line of actions that double a text fills the memory.
const (
	maxActions    = 256     // in a record
	maxActionText = 8 << 10 // that one of them makes, in bytes
	maxDigits     = 3       // of a width or a precision
)

var errActionText = errors.New("it makes a text longer than 8 KiB")

// recordFuncs are the functions of records: those of text/template that make text, with bounds, and parseInt.
func recordFuncs() template.FuncMap {
	return template.FuncMap{
		"parseInt": strconv.ParseUint,
		"print":    bounded(fmt.Sprint),
		"println":  bounded(fmt.Sprintln),
		"html":     bounded(template.HTMLEscaper),
		"js":       bounded(template.JSEscaper),
		"urlquery": bounded(template.URLQueryEscaper),
		"printf":   boundedPrintf,
	}
}

// bounded refuses to make a long text of long ones, which it does not make first.
func bounded(do func(...any) string) func(...any) (string, error) {
	return func(args ...any) (string, error) {
		if textSize(args) > maxActionText {
			return "", errActionText
		}
		text := do(args...)
		if len(text) > maxActionText {
			return "", errActionText
		}
		return text, nil
	}
}

// boundedPrintf is Sprintf. A verb can ask for more than its argument has, and for the same argument again.
func boundedPrintf(format string, args ...any) (string, error) {
	digits, verbs, isVerb := 0, 0, false
	for _, c := range format {
		isDigit := '0' <= c && c <= '9'
		switch {
		case c == '%':
			isVerb = !isVerb
			verbs++
			digits = 0
		case !isVerb:
		case isDigit:
			digits++
		case c == '*', digits > maxDigits:
			return "", fmt.Errorf("%q: a width is a number of %d digits at most", format, maxDigits)
		case strings.ContainsRune("+-# .[]", c):
			digits = 0
		default: // the letter
			isVerb, digits = false, 0
		}
	}
	const widest, escaped = 1000, 4 // characters of a byte
	if len(format) > maxActionText || verbs*(widest+escaped*textSize(args)) > 64*maxActionText {
		return "", errActionText
	}
	return bounded(func(...any) string { return fmt.Sprintf(format, args...) })()
}

// textSize is about how long the texts of values are, in bytes. All but strings are parts of a question.
func textSize(args []any) int {
	size := len(args)
	for _, arg := range args {
		if text, is := arg.(string); is {
			size += len(text)
		}
	}
	return size
}
