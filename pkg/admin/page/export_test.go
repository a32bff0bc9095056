// SPDX-License-Identifier: Apache-2.0

package page

// Record records one sample.
func (p *Page) Record() { p.record() }
