// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"slices"
)

// word is a value with a spelling: its number counts the words of its type from 0.
type word interface {
	~uint8
	words() []string
}

// spell returns the spelling of v.
func spell[T word](v T) string {
	if words := v.words(); int(v) < len(words) {
		return words[v]
	}
	return fmt.Sprintf("value %d", v)
}

// oneOf reads one of the words of a type.
func oneOf[T word](dst *T) func(node) {
	return func(n node) {
		words, s := (*dst).words(), spell(*dst)
		choice(&s, words...)(n)
		if i := slices.Index(words, s); i >= 0 {
			*dst = T(i)
		}
	}
}
