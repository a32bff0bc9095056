// SPDX-License-Identifier: Apache-2.0

package config

import (
	"strconv"
	"strings"
)

// didYouMean is the hint that names the word closest to a mistyped one, empty
// when none is close: at most a third of it wrong, and no more than two letters.
func didYouMean(typed string, words []string) string {
	if len(typed) > maxShown {
		return ""
	}
	best, least := "", min(2, max(1, len(typed)/3))+1
	for _, word := range words {
		if d := distance(strings.ToLower(typed), strings.ToLower(word)); d < least {
			best, least = word, d
		}
	}
	if best == "" {
		return ""
	}
	return "did you mean " + strconv.Quote(best) + "?"
}

// distance counts the letters to insert, remove, replace or swap with their
// neighbour that turn a into b (optimal string alignment).
func distance(a, b string) int {
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before, last, row = last, row, before
		row[0] = i + 1
		for j := range len(b) {
			row[j+1] = last[j]
			if a[i] == b[j] {
				continue
			}
			row[j+1] = 1 + min(last[j], last[j+1], row[j])
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
	}
	return row[len(b)]
}
