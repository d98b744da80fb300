"""Who reuses whom, decided before anything is measured (ETO, section 6). Start at reuse_plan.py."""
