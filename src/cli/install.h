/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_CLI_INSTALL_H
#define GR_CLI_INSTALL_H

#include <gradus/status.h>

/* Copies this program, all libraries that it has loaded, and the dynamic linker to FOLDER/lib, and
 * makes FOLDER/gradus, which starts it with these and no others: so it runs in containers of any
 * image of this architecture that has a shell. What is there already is replaced. GR_E_IO,
 * GR_E_NOT_FOUND: no such folder; GR_E_UNSUPPORTED: there is no dynamic linker. */
gr_status gr_install_self(const char *folder, gr_diag *diag) GR_MUST_CHECK;

#endif
