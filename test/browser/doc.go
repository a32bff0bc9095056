// SPDX-License-Identifier: Apache-2.0

// Package browser reads the page of the admin server in Chromium.
//
// It is a module of its own: the library that drives a browser is no dependency of the product. The environment is that of test/e2e.
package browser
