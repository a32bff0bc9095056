// SPDX-License-Identifier: Apache-2.0

package tsig

// Reload reads the file as Run does.
func (k *Keys) Reload() { k.reload(true) }
