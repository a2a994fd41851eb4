# SPDX-License-Identifier: Apache-2.0
"""The last line of ./check counts what passed, failed and was skipped, whatever goes wrong."""
import os
import pathlib
import shutil
import subprocess

import pytest

SOURCE = pathlib.Path(os.environ["GRADUS_SOURCE_DIR"])


def write_program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)


@pytest.fixture
def project(tmp_path):
    """./check in a project of its own with a rule that passes and a build that does nothing."""
    (tmp_path / "scripts").mkdir()
    shutil.copy(SOURCE / "check", tmp_path)
    shutil.copy(SOURCE / "scripts/count-tests", tmp_path / "scripts")
    for name in ("install-deps", "check-format", "check-symbols", "check-unused",
                 "check-install", "check-debian"):
        write_program(tmp_path / "scripts" / name, "exit 0\n")
    write_program(tmp_path / "bin/cmake", "exit 0\n")
    write_ctest(tmp_path, case("a", "run", "[  PASSED  ] 3 test(s).\n"))
    return tmp_path


def write_ctest(project, *cases):
    """A ctest that reports these cases."""
    (project / "report.xml").write_text(f"<testsuite>{''.join(cases)}</testsuite>")
    failed = any('status="fail"' in text for text in cases)
    write_program(project / "bin/ctest", f"""
while [ $# -gt 0 ]; do [ "$1" != --output-junit ] || cp {project}/report.xml "$2"; shift; done
exit {int(failed)}
""")


def case(name, status, output="", more=""):
    return (f'<testcase name="{name}" status="{status}">{more}<system-out>{output}</system-out>'
            "</testcase>")


def run(project, *arguments):
    done = subprocess.run([project / "check", *arguments], capture_output=True, text=True,
                          env=os.environ | {"PATH": f"{project}/bin:{os.environ['PATH']}"},
                          timeout=60)
    return done.returncode, done.stdout.splitlines(), done


def test_check_all_good_passes(project):
    code, lines, _ = run(project)
    assert (code, lines[-1]) == (0, "9 passed, 0 failed, 0 skipped")  # 6 steps, 3 tests


def test_check_full_counts_every_suite(project):
    code, lines, _ = run(project, "--full")
    assert (code, lines[-1]) == (0, "22 passed, 0 failed, 0 skipped")  # 10 steps, 4 suites of 3


def test_check_build_fails_suite_does_not_run(project):
    write_program(project / "bin/cmake", 'echo "no compiler"; exit 1\n')
    code, lines, _ = run(project)
    assert (code, lines[-1]) == (1, "2 passed, 2 failed, 0 skipped")
    assert "no compiler" in lines and "failed: tests: the suite did not run" in lines


def test_check_sanitizer_build_fails_only_its_suite_does_not_run(project):
    write_program(project / "bin/cmake", '[ "$2" != asan ] && [ "$3" != asan ]\n')
    code, lines, _ = run(project, "--full")
    assert (code, lines[-1]) == (1, "18 passed, 2 failed, 0 skipped")
    assert "failed: asan: the suite did not run" in lines


def test_check_packages_missing_says_how_to_install(project):
    write_program(project / "scripts/install-deps", 'echo "sudo apt-get install x" >&2; exit 2\n')
    code, lines, _ = run(project)
    assert (code, lines[-1]) == (1, "0 passed, 1 failed, 0 skipped")
    assert "sudo apt-get install x" in lines


def test_check_step_ends_with_77_is_skipped_with_reason(project):
    write_program(project / "scripts/check-debian", 'echo "Debian $1 needs root"; exit 77\n')
    code, lines, _ = run(project, "--full")
    assert (code, lines[-1]) == (0, "20 passed, 0 failed, 2 skipped")
    assert "skipped: debian-13: Debian 13 needs root" in lines


def test_check_program_missing_is_a_failure(project):
    write_ctest(project, case("a", "run"),
                case("b", "notrun", more='<skipped message="Unable to find executable"/>'))
    code, lines, _ = run(project)
    assert (code, lines[-1]) == (1, "7 passed, 1 failed, 0 skipped")
    assert "failed: tests: b: did not run: Unable to find executable" in lines


def test_check_entry_skips_itself_reason_is_shown(project):
    write_ctest(project, case("a", "run"), case("b", "notrun", "no network namespaces",
                                                '<skipped message="SKIP_RETURN_CODE=77"/>'))
    code, lines, _ = run(project)
    assert (code, lines[-1]) == (0, "7 passed, 0 failed, 1 skipped")
    assert "skipped: tests: b: no network namespaces" in lines


def test_check_programs_fail_their_tests_are_counted(project):
    write_ctest(project,
                case("some", "fail",
                     "[  PASSED  ] 4 test(s).\n[  FAILED  ] 2 test(s), listed below:\n"),
                case("crash", "fail", "[       OK ] x\n"),
                case("leak", "fail", "[  PASSED  ] 5 test(s).\n"),
                case("python", "fail", "1 failed, 17 passed, 2 skipped in 5.10s\n"),
                case("setup", "fail", "3 passed, 1 error in 5.10s\n"))
    code, lines, _ = run(project)
    assert (code, lines[-1]) == (1, "35 passed, 6 failed, 2 skipped")


def test_check_program_runs_no_test_counts_none(project):
    write_ctest(project, case("a", "run", "[  PASSED  ] 0 test(s).\n"))
    code, lines, _ = run(project)
    assert (code, lines[-1]) == (0, "6 passed, 0 failed, 0 skipped")


def test_check_report_is_cut_off_is_a_failure(project):
    write_ctest(project, "<testcase")
    code, lines, _ = run(project)
    assert (code, lines[-1]) == (1, "6 passed, 1 failed, 0 skipped")


def test_check_argument_unknown_is_refused(project):
    code, _, done = run(project, "--fast")
    assert code == 2 and "--fast" in done.stderr


@pytest.mark.parametrize("arguments, left_out", [([], "long"), (["--quick"], "long|blackbox")])
def test_check_quick_leaves_out_black_box_tests(project, arguments, left_out):
    write_program(project / "bin/ctest", f"""
echo "$*" >{project}/asked
while [ $# -gt 0 ]; do [ "$1" != --output-junit ] || cp {project}/report.xml "$2"; shift; done
""")
    code, lines, _ = run(project, *arguments)
    assert (code, lines[-1]) == (0, "9 passed, 0 failed, 0 skipped")
    assert (project / "asked").read_text().split()[-2:] == ["-LE", left_out]
