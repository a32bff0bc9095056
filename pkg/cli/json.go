// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// Bounds of a JSON text from a node. The page of a node with 1,000 upstreams has 60,000 tokens, in 6 levels.
const (
	maxLevels = 16
	maxTokens = 1 << 18
)

// ReadJSON reads JSON that a node sent, which may be compromised, into v. Few bytes can need much memory: `{}` is an item of a
// list, and an indented text repeats the indentation of all levels. So the levels and the tokens are bounded, before
// anything is kept.
func ReadJSON(text []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	levels := 0
	for tokens := 1; ; tokens++ {
		token, err := d.Token()
		if err != nil { // the end, or an error that Unmarshal finds too
			return json.Unmarshal(text, v)
		}
		switch token {
		case json.Delim('{'), json.Delim('['):
			levels++
		case json.Delim('}'), json.Delim(']'):
			levels--
		}
		if levels > maxLevels {
			return fmt.Errorf("JSON with more than %d levels", maxLevels)
		}
		if tokens > maxTokens {
			return fmt.Errorf("JSON with more than %d tokens", maxTokens)
		}
	}
}
