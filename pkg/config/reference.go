// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	_ "embed" // reference.yaml
)

//go:embed reference.yaml
var reference []byte

// Reference returns a configuration with every key at the default of [Agent], each with a
// comment that says what it does. The caller owns the bytes.
func Reference() []byte { return bytes.Clone(reference) }
