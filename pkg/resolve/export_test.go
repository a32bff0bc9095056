// SPDX-License-Identifier: Apache-2.0

package resolve

// Find is the canonical name that is looked up in place of name.
func (rs *Rewrites) Find(name []byte) []byte {
	to, rule := rs.match(nil, name)
	if rule == nil {
		return name
	}
	return to
}

// Walked is how many records the answer had that the worker restored last.
func (w *Worker) Walked() int { return len(w.restorer.tail.Records) }
